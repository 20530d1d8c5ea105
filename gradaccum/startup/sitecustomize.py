"""Imported by every Python interpreter of a job, before the script: stacks, limits, steps, zero code.

Rule: each part does nothing unless its variable is there. A process that never imports torch must not
notice. This file is standard library only, imports of ours what is, runs the `sitecustomize` that it
hides, and lets no error of its own reach the script: each part runs in `_run`, by which `checkpoint/guard.py`
hears of what was raised. The script is started by the
user's own command, so arguments, `__main__` and tracebacks are Python's.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = (
    False  # Type checkers take it for true; importing `typing` costs every interpreter milliseconds.
)
if TYPE_CHECKING:
    from typing import Any

ENV_ZERO_CODE = "COTENANT_ZERO_CODE"
"""Which parts are wanted: `accumulate`, `checkpoint` or `leave`, `progress`, `quiet`, with commas."""
PROGRESS = "progress"
ENV_STACKS_SIGNAL = "COTENANT_STACKS_SIGNAL"
"""The number of a signal at which this process writes the stacks of all its threads to stderr and goes on."""
ENV_COLLECTIVE_SCALE = "COTENANT_COLLECTIVE_SCALE"
"""Times torch's own time limits for collectives, where a process group is made without one."""
ENV_MEMORY_FRACTION = "COTENANT_MEMORY_FRACTION"
ENV_MEMORY_MIB = "COTENANT_MEMORY_MIB"
"""What this process may take of each of its CUDA devices; there is one of the two, or none."""
ENV_MODULES = "COTENANT_MODULES"
"""A file to write the names of imported packages to, once: at the first step, or at the end."""
ENV_JOB = "COTENANT_JOB"
ENV_ROOT = "COTENANT_CHECKPOINT_ROOT"
ENV_RESUME = "COTENANT_RESUME"
ENV_PROTOCOL, VERSION = "COTENANT_PROTOCOL", "1"
_TORCH = ("torch", "torch.nn", "torch.nn.functional", "torch.optim", "torch.utils.data", "torch.distributed")
"""What scripts import of torch, `torch` itself left out by some."""
_watched: list[Any] = []
_PID = os.getpid()
_BUILTINS = dict(vars(builtins))
"""What is ours keeps to them: a script that replaces one (`open`, `range`) hears of its own calls alone."""
HERE = os.path.dirname(os.path.abspath(__file__))


def door(function: Any) -> Any:
    """As in `checkpoint/guard.py`, which no process needs that never imports torch."""
    function.__cotenant_door__ = True
    return function


@door
def _run(part: str, function: Any, *args: Any, otherwise: Any = None) -> Any:
    """What the function returns. Whatever it raises switches off this part, a name in the guard's module, and
    the script goes on."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001  # whatever it is, the script must run
        with contextlib.suppress(Exception):
            getattr(importlib.import_module("cotenant.checkpoint.guard"), part).turn_off(error)
        return otherwise


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "cotenant"


class Startup:
    """Calls back when a module has been imported: a finder that comes first and finds nothing itself."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Any]] = {}
        self._before: dict[str, Any] = {}

    def call_before_import(self, name: str, callback: Any) -> None:
        """Call `callback()` when `name` is about to be executed. Looking for it is not importing it."""
        self._before[name] = callback

    def when_imported(self, name: str, callback: Any) -> None:
        """Call `callback(module)` once `name` has been executed; at once if it has been already."""
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _run("STARTING", callback, module)
        else:
            self._waiting.setdefault(name, []).append(callback)

    @door
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.startswith("cotenant") or name in self._waiting or name in self._before:
            return _run("STARTING", self._find, name, path, target)
        return None

    def _find(self, name: str, path: Any, target: Any) -> Any:
        """What the other finders find, with us around its execution."""
        later = iter(tuple(sys.meta_path))
        any(each is self for each in later)  # Others of ours ask as well: only those that come after them.
        for finder in later:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        @door
        def exec_module(module: Any) -> None:
            _run("STARTING", self._begins, name, module, spec.loader)
            execute(module)
            _run("STARTING", self._executed, name, module)

        with contextlib.suppress(AttributeError):  # a loader with slots: no hook, no harm
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _begins(self, name: str, module: Any, loader: Any) -> None:
        loader.__dict__.pop("exec_module", None)
        if _is_ours(name):
            module.__builtins__ = _BUILTINS
        self._before.pop(name, lambda: None)()

    def _executed(self, name: str, module: Any) -> None:
        if name in self._waiting:
            with _without_collection():
                for callback in self._waiting.pop(name):
                    _run("STARTING", callback, module)


@contextlib.contextmanager
def _without_collection() -> Any:
    """All that torch is made of would be gone through for what is ours: a tenth of a second each time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _torch_is_there(startup: Startup, wanted: list[str]) -> Any:
    def install() -> None:
        standing = importlib.import_module("cotenant.gradaccum.zerocode").install(startup, wanted)
        resuming = importlib.import_module("cotenant.checkpoint.zerocode")
        resuming.install(standing, wanted, startup)

    def begin(_: Any) -> None:
        _run("SAVING" if {"checkpoint", "leave"} & set(wanted) else "SPLITTING", install)

    return begin


def _optimizers_are_there(startup: Startup) -> Any:
    """Count steps from now on."""

    def install(optimizers: Any) -> None:
        importlib.import_module("cotenant.checkpoint.progress").install(startup, optimizers)

    def begin(optimizers: Any) -> None:
        _run("COUNTING", install, optimizers)

    return begin


class WatchedSpec(importlib.machinery.ModuleSpec):
    """The spec of a module that a warm start has before its script: Python asks at each import whether the
    module is complete, so the first question is the script's import."""

    @property
    @door
    def _initializing(self) -> bool:
        _run("STARTING", _import_begins)
        return False


def _import_begins() -> None:
    for spec in _watched:
        spec.__class__ = importlib.machinery.ModuleSpec
    _tell_watched()


def _seed_alike(startup: Startup, job: str) -> None:
    """Before the script does anything, seed what it may not seed: as in the job's other attempts, and unlike
    in any other job. What it makes before its loop, its data for one, is then the same again."""
    importlib.import_module("cotenant.checkpoint.seeds").watch_seeds(job, startup.when_imported)


compile_script = None  # type: Any
"""Makes the code of a script in a process that was there before it; None: as Python does."""


def _take_up_script(env: Any) -> None:
    """If the job has checkpoints, mark the loops in which its script was left."""
    global compile_script
    try:
        names = os.listdir(env.get(ENV_ROOT, ""))
    except OSError:
        return  # Nothing was saved; a folder that cannot be read is found out when it is to be.
    if any(name[:1] == "a" for name in names) and env.get(ENV_RESUME) != "none":
        importlib.import_module("cotenant.checkpoint.guard").SAVING.is_needed = True
        compile_script = importlib.import_module("cotenant.checkpoint.rerun").mark_script()


def _watch(startup: Startup) -> None:
    """Tell the supervisor when the script imports torch: its first step will be told as well."""
    if "torch" not in sys.modules:
        startup.call_before_import("torch", _tell_watched)
    for name in _TORCH:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if type(spec) is importlib.machinery.ModuleSpec and not getattr(spec, "_initializing", False):
            with contextlib.suppress(TypeError):  # No word in time, no harm.
                spec.__class__ = WatchedSpec
                _watched.append(spec)


def _tell_watched() -> None:
    """Without this word the supervisor assumes that the script never steps."""
    rank, version = os.environ.get("RANK", "0"), os.environ.get(ENV_PROTOCOL, VERSION)
    if version == VERSION and rank.isdecimal():
        importlib.import_module("cotenant.checkpoint.guard").tell_supervisor("watched")


def _take_stacks_signal(number: str) -> None:
    """Takes the signal for stacks in C, so that it also works while the main thread waits in a collective. A
    script that wants the signal for itself replaces this. Children that are forked (data loaders) have it as
    well."""
    if sys.__stderr__ is None:
        return
    try:
        import faulthandler

        faulthandler.register(int(number), file=sys.__stderr__, all_threads=True, chain=False)
    except (ImportError, AttributeError, ValueError, RuntimeError, OSError):
        return  # no such signal here: the supervisor sees that it is not caught


def _scale_time_limits(scale: str) -> Any:
    """Process groups whose script names no time limit get torch's default for the backend, times `scale`."""

    def begin(c10d: Any) -> None:
        default = getattr(c10d, "_get_default_timeout", None)
        try:
            factor = float(scale)
        except ValueError:
            return
        if default is None or not 1.0 <= factor <= 1000.0:
            return

        @door
        def _get_default_timeout(backend: Any) -> Any:
            return default(backend) * factor

        c10d._get_default_timeout = _get_default_timeout

    return begin


def _keep_to_share(torch: Any) -> None:
    """Hold torch to what was planned of its devices from its first use of CUDA on, whatever the script is.
    `checkpoint/device_limit.py` does it; a process that never uses CUDA does not load it.
    """
    cuda = torch.cuda
    plain = getattr(cuda, "set_per_process_memory_fraction", None)
    when_used = getattr(cuda, "_lazy_call", None)
    if plain is None or when_used is None:
        raise RuntimeError("this torch has no limit to set")

    def limits() -> Any:
        return importlib.import_module("cotenant.checkpoint.device_limit").limits_of(os.environ, plain)

    def begin() -> None:
        found = limits()
        if found is not None:
            found.begin()

    def lower(fraction: Any, device: Any) -> Any:
        found = limits()
        return fraction if found is None else found.note_asked(fraction, device)

    @door
    def hold() -> None:
        _run("LIMITING", begin)

    @door
    @functools.wraps(plain)
    def within(fraction: Any, device: Any = None) -> None:
        plain(_run("LIMITING", lower, fraction, device, otherwise=fraction), device)

    cuda.set_per_process_memory_fraction = within
    if hasattr(cuda, "memory"):
        cuda.memory.set_per_process_memory_fraction = within
    when_used(hold)


@door
def _limited(torch: Any) -> None:
    _run("LIMITING", _keep_to_share, torch)


@door
def end_process() -> None:
    _run("ENDING", note_modules)


def note_modules() -> None:
    """Called at the first optimizer step by `checkpoint/session.py`, else at the end: what was imported from
    the environment, so that a process can be kept that has it. The first rank of a host alone, and not its
    launcher, which is known by PET_NODE_RANK."""
    path = os.environ.get(ENV_MODULES, "")
    first = os.environ.get("LOCAL_RANK", "" if "PET_NODE_RANK" in os.environ else "0")
    if not path or first != "0" or os.getpid() != _PID:
        return
    del os.environ[ENV_MODULES]
    import json
    import site

    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    places = tuple(os.path.join(each, "") for each in folders)
    names = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(origin, str) and origin.startswith(places) and name.partition(".")[0] != "cotenant":
            names.append(name)  # Without ours: in a job they come from beside this file.
    part = path + ".part"  # Half a list would be taken for the whole one.
    with contextlib.suppress(OSError):
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, json.dumps(names).encode())
        finally:
            os.close(file)
        os.rename(part, path)


def _hidden() -> Any:
    """The environment's own `sitecustomize`, which this file stands in front of; None: it has none."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != HERE]
    spec: Any = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    return spec if spec is not None and spec.loader is not None else None


@door
def _run_hidden() -> None:
    """What it raises is not ours to catch."""
    spec = _run("STARTING", _hidden)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _main() -> None:
    env = os.environ
    if env.get(ENV_STACKS_SIGNAL):
        _run("STARTING", _take_stacks_signal, env[ENV_STACKS_SIGNAL])
    wanted = [part for part in env.get(ENV_ZERO_CODE, "").split(",") if part]
    scale = env.get(ENV_COLLECTIVE_SCALE, "")
    share = env.get(ENV_MEMORY_MIB, "") or env.get(ENV_MEMORY_FRACTION, "")
    if env.get(ENV_MODULES):
        import atexit

        atexit.register(end_process)
    startup = Startup()
    counts = PROGRESS in wanted
    if scale or wanted or share:
        sys.meta_path.insert(0, startup)
    wanted = [part for part in wanted if part != PROGRESS]
    if counts:
        startup.when_imported("torch.optim.optimizer", _optimizers_are_there(startup))
    if share:
        startup.when_imported("torch", _limited)
    if scale:
        startup.when_imported("torch.distributed.distributed_c10d", _scale_time_limits(scale))
    if env.get(ENV_JOB) and {"checkpoint", "leave"} & set(wanted):
        _run("SAVING", _take_up_script, env)
        _run("SAVING", _seed_alike, startup, env[ENV_JOB])
    if wanted:
        startup.when_imported("torch", _torch_is_there(startup, wanted))
    if counts:
        _watch(startup)  # The last: what is done for the script imports torch as well.
    if startup in sys.meta_path[1:]:  # Another finder of ours came before it.
        sys.meta_path.remove(startup)
        sys.meta_path.insert(0, startup)


_run("STARTING", _main)
_run_hidden()
