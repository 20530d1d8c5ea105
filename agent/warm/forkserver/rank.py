"""From a fork of the server to what a cold `python script`, or `python -m module`, would be.

Rule: a rank finds out before `up` whatever can be wrong, and that is no more than a reason to start cold;
from
the gate on the process is the user's. What a script can see is Python's own: a fresh `__main__`, `sys.argv`,
`sys.path[0]`, its environment, its uncaught errors without a frame of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import signal
import stat
import sys
import threading
import types

from . import launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from typing import Any

PR_SET_PDEATHSIG = 1
ENV_SIGN = "COTENANT_SOCKET"
SIGN_BYTES = 512
REQUEST_BYTES_MAX = 8 * 1024 * 1024
STARTUP = "/cotenant/gradaccum/startup"


class RankPlace:
    """What a rank has from its nanny."""

    def __init__(
        self,
        parent: int,
        outputs: tuple[int, int],
        others: list[int],
        gate: int,
        added: dict[str, str],
        *,
        dies: bool,
    ) -> None:
        """Keeps what a rank is given. `dies`: the rank dies with its parent."""
        self.parent = parent
        self.dies = dies
        self.outputs = outputs
        self.others = others
        self.gate = gate
        self.added = added


class CannotBe(Exception):
    """Why this rank is started cold: a code of the table of refusals, and what was found."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def prepare_rank(
    connection: socket.socket,
    request: dict[str, Any],
    wanted: dict[str, Any],
    place: RankPlace,
    asks: socket.socket | None,
) -> Callable[[], None]:
    """Makes the new process the rank, says so, and waits for the gate. Ends the process if it cannot. `asks`:
    the rank is a launcher's, whose workers are forked as well."""

    def become() -> Callable[[], None]:
        os.setpgid(0, 0)
        _become(place, wanted["env"], wanted["cores"], request["workdir"])
        os.umask(request["umask"])
        if request["input"]:
            _read_from(**request["input"])
        if asks is not None:
            launcher.install(asks, float(request["first_word_s"]))
        return _program(request["target"], list(request["argv"]))

    return _through_the_gate(connection, {"m": "up", "rank": wanted["rank"]}, become, place.gate)


def prepared_worker(
    connection: socket.socket, request: dict[str, Any], place: RankPlace, serves: bool
) -> Callable[[], None]:
    """Prepares a launcher's worker as `prepare_rank` does a rank; the worker is started as a child of the
    launcher's would be."""

    def become() -> Callable[[], None]:
        os.setsid()
        if not serves:
            raise CannotBe("rank", "its environment is another one")
        _become(place, request["env"], request["cores"], request["workdir"])
        os.umask(request["umask"])
        argv = list(request["argv"])
        return _program(target_of(argv), argv)

    return _through_the_gate(connection, {"m": "up", "pid": os.getpid()}, become, place.gate)


def target_of(argv: list[str]) -> dict[str, Any]:
    """Reads what to run from `PYTHON [-u] SCRIPT ...` and `PYTHON [-u] -m MODULE ...`. Raises CannotBe."""
    words = argv[1:]
    if argv[0] != sys.executable or (words[:1] == ["-u"] and not getattr(sys.stdout, "write_through", False)):
        raise CannotBe("command", argv[0])
    words = words[1:] if words[:1] == ["-u"] else words
    if words[:1] == ["-m"] and len(words) > 1:
        return {"module": words[1], "words": words[2:]}
    if not words or words[0].startswith("-"):
        raise CannotBe("command", " ".join(argv[:3]))
    return {"module": "", "script": words[0], "words": words[1:]}


def _through_the_gate(
    connection: socket.socket, word: dict[str, Any], become: Callable[[], Callable[[], None]], gate: int
) -> Callable[[], None]:
    run = None
    try:
        run = become()
    except CannotBe as problem:
        word = {"m": "failed", "code": problem.code, "detail": str(problem)[:500]}
    except Exception as error:  # noqa: BLE001  # Whatever it is: a cold start will do, or say it better.
        word = {"m": "failed", "code": "rank", "detail": "{}: {}".format(type(error).__name__, error)[:500]}
    try:
        connection.send(json.dumps(word).encode())
        connection.close()
        if run is not None and not os.read(gate, 1):  # Ends without a byte if nobody will open it.
            run = None
        os.close(gate)
    except BaseException:  # noqa: BLE001
        run = None
    if run is None:
        os._exit(126)
    return run


# --- The process ---------------------------------------------------------------------------------------


def _become(place: RankPlace, given: dict[str, str], cores: list[int], workdir: str) -> None:
    if place.dies:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != place.parent:
        os._exit(126)
    for each in place.others:
        os.close(each)
    for output, target in zip(place.outputs, (1, 2)):
        os.dup2(output, target)
    for output in set(place.outputs):
        os.close(output)
    if cores:
        os.sched_setaffinity(0, cores)
    env = {**place.added, **given}
    os.environ.clear()
    os.environ.update(env)
    os.chdir(workdir)
    _forget_the_server()


def _read_from(path: str, device: int, inode: int, offset: int) -> None:
    """Standard input, opened as a cold start does it."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) == (device, inode):
            if stat.S_ISREG(found.st_mode):
                os.lseek(file, offset, os.SEEK_SET)
            os.set_blocking(file, True)
            os.dup2(file, 0)
        os.close(file)
    python: Any = sys
    had = python.stdin  # What it knows of /dev/null (that it can be sought in) may not hold any more.
    raw: Any = os.fdopen(0, "rb", closefd=False)
    raw.raw.name = had.name
    like = had.encoding, had.errors, "\n", had.line_buffering, had.write_through
    words: Any = io.TextIOWrapper(raw, *like)
    words.mode = had.mode
    python.stdin = python.__stdin__ = words


def sign(address: int, value: str) -> None:
    """The environment that the kernel shows of a fork is that of the server's own start: by this one variable
    an attempt's processes are found again, so a nanny writes it where the kernel looks, and its ranks have
    it."""
    data = os.fsencode(value)
    if not address or not data or len(data) >= SIGN_BYTES:
        raise CannotBe("rank", "its environment has no room for the variable that names its attempt")
    ctypes.memset(address, 0, SIGN_BYTES - 1)
    ctypes.memmove(address, data, len(data))


def _forget_the_server() -> None:
    """State that a cold process would have had of its own."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # `random` sees to that itself.
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()  # The one of the CPU: it got a random seed when it was imported.
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)
    thread: Any = threading.main_thread()
    if hasattr(thread, "_set_native_id"):
        thread._set_native_id()


# --- The program ---------------------------------------------------------------------------------------


def _program(target: dict[str, Any], argv: list[str]) -> Callable[[], None]:
    """Returns what runs the user's command. `target`: a script's path or a module's name, and the words after
    it."""
    if target.get("is_on_path"):
        target = {**target, "script": _find_program(target["script"])}
        argv = [sys.executable, target["script"], *target["words"]]
    sys.orig_argv = argv
    safe_path = getattr(sys.flags, "safe_path", False)
    if target["module"]:
        if not safe_path:
            _first_on_path(os.getcwd())
        sys.argv = ["-m", *target["words"]]
        return lambda: _run_module(target["module"])
    path = target["script"]
    source = _source_of(path)
    if not safe_path:
        _first_on_path(os.path.dirname(os.path.realpath(path)))
    sys.argv = [path, *target["words"]]
    return lambda: _run_script(_absolute(path), source)


def _find_program(name: str) -> str:
    """A program of the environment, as the kernel would start it: by this interpreter."""
    path = shutil.which(name)
    if path is None:
        raise CannotBe("command", "{} is not in PATH".format(name))
    with open(path, "rb") as file:
        line = file.readline(512).decode(errors="replace").rstrip()
    if line != "#!" + sys.executable:
        raise CannotBe("command", "{} begins with {}".format(path, line))
    return path


def _first_on_path(folder: str) -> None:
    """Raises CannotBe where a cold start would have imported something else from there, or from
    PYTHONPATH."""
    loaded = {name for name in sys.modules if "." not in name} - {"__main__"}
    ahead = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for entry in (folder, *(each for each in ahead if not each.endswith(STARTUP))):
        for name in _modules_in(entry):
            if name in loaded and not _is_from(sys.modules[name], entry):
                raise CannotBe("shadowed", "{} in {}".format(name, entry))
    sys.path.insert(0, folder)
    sys.path_importer_cache.pop(folder, None)


def _modules_in(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        stem, dot, rest = name.partition(".")
        if not dot:
            if os.path.exists(os.path.join(folder, name, "__init__.py")):
                yield name
        elif rest in ("py", "pyc") or rest.endswith("so"):
            yield stem


def _is_from(module: Any, folder: str) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return isinstance(origin, str) and origin.startswith(os.path.join(folder, ""))


def _source_of(path: str) -> bytes:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or path.endswith(".pyc"):
        raise CannotBe("command", "{} is no script".format(path))
    with io.open_code(_absolute(path)) as file:
        source = file.read()
    if source.startswith(b"PK") or b"\0" in source:
        raise CannotBe("command", "{} is no script".format(path))
    return source


def _absolute(path: str) -> str:
    """Makes a path absolute as Python does for `__file__`: not tidied up."""
    if os.path.isabs(path):
        return path
    return os.path.join(os.getcwd(), path)


def _fresh_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = main
    return main


def _run_script(path: str, source: bytes) -> None:
    main = _fresh_main()
    main.__dict__.update(
        __file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path)
    )
    _customize()
    with _own_frames_hidden():
        exec(_compile(source, path), main.__dict__)


def _compile(source: bytes, path: str) -> Any:
    """The code of a script; where it goes on from a checkpoint, the start-up hook knows how to make it."""
    compile_script = getattr(sys.modules.get("sitecustomize"), "compile_script", None)
    if compile_script is not None:
        return compile_script(source, path)
    return compile(source, path, "exec", dont_inherit=True)


def _run_module(name: str) -> None:
    main = _fresh_main()
    with contextlib.suppress(Exception):  # runpy finds it again, and says what is wrong.
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
        if spec is not None and spec.has_location:
            main.__dict__["__file__"] = spec.origin
    _customize()
    runpy: Any = importlib.import_module("runpy")
    with _own_frames_hidden():
        runpy._run_module_as_main(name)


def _customize() -> None:
    """The start-up hook has looked at an environment without our variables: it looks again, and finds torch
    there already. What it does then it does to `__main__`, which must be the script's."""
    if any(entry.endswith(STARTUP) for entry in sys.path):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


@contextlib.contextmanager
def _own_frames_hidden() -> Iterator[None]:
    """What the script does not catch goes on to Python itself, and to whatever hook the script has set by
    then, with the script's frames alone. A hook that fails itself is shown with one of ours, as is a
    crash."""
    try:
        yield
    except BaseException as uncaught:
        error, inner = uncaught, uncaught.__traceback__
        while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
            inner = inner.tb_next
        hook = sys.excepthook

        def shown(kind: Any, raised: Any, trace: Any) -> None:
            if raised is error:
                raised.__traceback__ = trace = inner
            hook(kind, raised, trace)

        sys.excepthook = shown
        raise
