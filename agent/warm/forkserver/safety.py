"""Whether forks of this process are what a cold start would be; each thing that speaks against it has a code.

Rule: look, do not repair. What was found once stays found: the server ends, and the agent remembers why.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import re
import select
import site
import sys
import sysconfig
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

DRY_FORK_S = 2.0
_OF_GLIBC = 1 << 31 | 1 << 32
COERCED = "LC_CTYPE"
"""The one variable that Python itself may set, at its start."""
KNOWN_PTH = (
    re.compile(r"import __editable__\w+; __editable__\w+\.install\(\)"),
    re.compile(r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; .*add_shim\(\);? *"),
    re.compile(r"import _virtualenv"),
    re.compile(r"import sys, types, os; ?(has_mfs = |p = os\.path\.join\().*sys\.modules\.setdefault\(.*"),
    re.compile(r"import sys; exec\('import os\\n\\nif os\.getenv\(\"COVERAGE_PROCESS_START\"\).*"),
    re.compile(r"import (os|sys)"),
)
"""Lines that only add places to import from (of setuptools and virtualenv), and the one of coverage, which
does nothing unless its variables are there."""
COVERAGE = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


class Unsafe(Exception):
    """A row of the table of refusals: its code, and what was found."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(detail)
        self.code = code


class Before:
    """How the process was before anything was imported. Raises Unsafe for what stands in the way already."""

    def __init__(self, given: dict[str, str]) -> None:
        """Notes the state before the imports. `given`: the environment, as the agent has given it."""
        _look_for_customizing()
        _look_for_pth()
        own = {name: value for name, value in os.environ.items() if name != COERCED}
        if os.path.realpath("/proc/self/exe") != os.path.realpath(sys.executable) or own != {
            name: value for name, value in given.items() if name != COERCED
        }:
            raise Unsafe("wrapper", sys.executable)
        self._given = given
        self._environment = dict(os.environ)
        self._caught = _caught_signals()

    def changes(self, late_reads: set[str]) -> dict[str, str]:
        """Variables that imports have added. Raises Unsafe for all that must not have happened."""
        _look_at_late_reads(late_reads)
        added = self._look_at_environment()
        if _caught_signals() != self._caught:
            raise Unsafe("handler")
        _look_at_devices()
        _look_at_origins()
        _fork_dry()
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            raise Unsafe("threads", "{} of them".format(threads))
        return added

    def _look_at_environment(self) -> dict[str, str]:
        now = dict(os.environ)
        for name, value in self._environment.items():
            if now.get(name) != value:
                raise Unsafe("environment", name)
        return {name: value for name, value in now.items() if name not in self._given}


class Packages:
    """The files and folders that decide what an import finds, as they were. Nothing was imported from places
    that come before them (PYTHONPATH, the script's folder): whether these have something by now, a rank
    looks.
    """

    def __init__(self) -> None:
        roots = _site_folders()
        paths = {sys.executable, os.path.join(sys.prefix, "pyvenv.cfg"), *roots, *_metadata(roots)}
        for module in list(sys.modules.values()):
            paths.update(_places(module))
        self._stamps = {path: _stamp(path) for path in paths}

    def stale(self) -> str:
        """What is no longer as it was; empty: everything is."""
        return next((path for path, stamp in self._stamps.items() if _stamp(path) != stamp), "")


@contextlib.contextmanager
def watched_environment(late: frozenset[str], prefixes: tuple[str, ...]) -> Iterator[set[str]]:
    """Which of the variables that differ from job to job were asked for meanwhile."""
    environ: Any = os.environ
    encode, asked = environ.encodekey, set()

    def encodekey(key: str) -> Any:
        if key in late or str(key).startswith(prefixes):
            asked.add(key)
        return encode(key)

    environ.encodekey = encodekey
    try:
        yield asked
    finally:
        environ.encodekey = encode


def _look_at_late_reads(names: set[str]) -> None:
    if names:
        raise Unsafe("late-variable", ", ".join(sorted(names)))


def _look_for_customizing() -> None:
    """Our own `sitecustomize` is in a folder of the name `startup`; a distribution's is beside the standard
    library, and is the same for everybody."""
    spared = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    for name in ("sitecustomize", "usercustomize"):
        for entry in sys.path:
            spec = importlib.machinery.PathFinder.find_spec(name, [entry])
            origin = (spec.origin or "") if spec is not None else ""
            is_ours = origin.endswith("/cotenant/gradaccum/startup/sitecustomize.py")
            if origin and not is_ours and os.path.dirname(origin) not in spared:
                raise Unsafe("customizing", origin)


def _look_for_pth() -> None:
    for folder in _site_folders():
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                if name.endswith(".pth"):
                    _look_at_pth(os.path.join(folder, name))


def _look_at_pth(path: str) -> None:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith(("import ", "import\t")):
                continue
            known = any(each.fullmatch(line.rstrip()) for each in KNOWN_PTH)
            if not known or ("COVERAGE" in line and any(name in os.environ for name in COVERAGE)):
                raise Unsafe("pth", path)


def _site_folders() -> list[str]:
    """The folders of site packages, those of another environment included, where a `.pth` file puts this one
    upon it."""
    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    named = ("site-packages", "dist-packages")
    return folders + [each for each in sys.path if os.path.basename(each) in named and each not in folders]


def _look_at_devices() -> None:
    """Looks for open devices among the process's open files: asking torch would be the first use."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink("/proc/self/fd/" + name)
            if target.startswith("/dev/nvidia"):
                raise Unsafe("cuda", target)


OF_JOBSIDE = ("/cotenant/gradaccum/startup/sitecustomize.py", "/cotenant/__init__.py")
"""What every job has on its PYTHONPATH from us."""


def _look_at_origins() -> None:
    """Packages of the environment may have imported what lies on PYTHONPATH."""
    folders = [*_site_folders(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    allowed = tuple(each + os.sep for folder in folders for each in (folder, os.path.realpath(folder)))
    here = os.path.dirname(os.path.abspath(__file__)) + os.sep
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if not isinstance(origin, str) or not origin.startswith(os.sep):
            continue
        if origin.startswith(here) or origin.endswith(OF_JOBSIDE):
            continue
        if not origin.startswith(allowed) and not os.path.realpath(origin).startswith(allowed):
            raise Unsafe("user-code", "{} from {}".format(name, origin))


def _fork_dry() -> None:
    """Forks one child, which ends at once. Handlers of libraries for a fork run, and end their idle
    threads."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    until_s = time.monotonic() + DRY_FORK_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > until_s:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise Unsafe("dry-fork")
        select.select([], [], [], 0.001)


def _caught_signals() -> dict[str, int]:
    """The signal masks as the kernel has them: those of libraries in C as well, but for the two that glibc
    takes with the first thread."""
    with open("/proc/self/status") as file:
        lines = [line.split() for line in file if line.startswith(("SigCgt", "SigIgn", "SigBlk"))]
    return {name: int(mask, 16) & ~_OF_GLIBC for name, mask in lines}


def _metadata(roots: Sequence[str]) -> Iterator[str]:
    """The files that an installation changes: `.pth` files and the modules that stand for editable
    packages."""
    for root in roots:
        with contextlib.suppress(OSError):
            for name in os.listdir(root):
                if name.endswith((".pth", ".egg-link", ".dist-info")) or name.startswith("__editable__"):
                    yield os.path.join(root, name)


def _places(module: Any) -> Iterator[str]:
    """Where a module is, and where its package's others are looked for."""
    for name in ("__file__", "__path__"):
        found = getattr(module, name, None)
        if isinstance(found, str):
            yield found
        elif name == "__path__" and found is not None:
            with contextlib.suppress(Exception):
                yield from (each for each in found if isinstance(each, str))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
