"""A function and its arguments on their way into a job.

Rule: a function goes by value, as it is now, with the module that it is from where that is the user's own
and not installed: what is edited later is another function. All else is imported in the job, where the path
is the submitter's. The function is pickled once, the arguments of each call by themselves."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final, NamedTuple

from cotenant.controller.python import folders
from cotenant.controller.python.errors import BadCall
from cotenant.controller.python.inside import EACH_RANK, MODULE, WORK_DIR

WITHOUT_CLOUDPICKLE: Final = "pip install '.[api]' in cotenant's source folder"
NAME_MAX: Final = 64
_REGISTRY: Final = threading.RLock()
"""Which modules go by value is one list of the process's."""


class PackedCalls(NamedTuple):
    """One function and so many calls of it, on disk."""

    folder: Path
    name: str
    sha256: str
    """Of the function, without its arguments."""
    calls: int

    def argv(self, at: int, each_rank: bool) -> tuple[str, ...]:
        flags = (EACH_RANK,) if each_rank else ()
        return (sys.executable, "-m", MODULE, *flags, WORK_DIR, str(self.folder / str(at)), self.name)


class CallPlace(NamedTuple):
    """Where a call's results lie."""

    folder: Path
    each_rank: bool


def place_of(argv: Sequence[str]) -> CallPlace | None:
    """Of a job's command; None: it is not a call of a function."""
    if len(argv) < 6 or tuple(argv[1:3]) != ("-m", MODULE) or argv[-3] != WORK_DIR:
        return None
    return CallPlace(Path(argv[-2]), EACH_RANK in argv[3:-3])


def packed(
    function: Callable[..., Any],
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    base: Path,
    bytes_max: int = folders.CALL_BYTES_MAX,
) -> PackedCalls:
    """Raises BadCall: something in it cannot be pickled, is too large, or cannot be written there."""
    try:
        import cloudpickle
    except ImportError:
        raise BadCall(
            "functions are sent with cloudpickle, which is not installed", WITHOUT_CLOUDPICKLE
        ) from None
    name = name_of(function)
    folder = None
    try:
        with _by_value(function, cloudpickle):
            code = cloudpickle.dumps(function)
        folder = folders.make(base)
        with folders.opened(folder) as above:
            with folders.writing(above, folders.FUNCTION, bytes_max) as file:
                pickle.dump(_path(), file)
                file.write(code)
            with _by_value(function, cloudpickle):
                _write_arguments(above, calls, bytes_max, cloudpickle.dump)
    except BaseException as error:
        if folder is not None:
            discard(folder)
        if isinstance(error, OSError):
            raise BadCall(f"{name} cannot be written to {base}: {error}", "give folder=") from None
        if isinstance(error, folders.TooLarge):
            raise BadCall(f"{name}: {error}", "put what is large into a file, and give its path") from None
        if isinstance(error, Exception):
            raise BadCall(f"{name} or its arguments cannot be pickled: {error}") from error
        raise
    return PackedCalls(folder, name, hashlib.sha256(code).hexdigest(), len(calls))


def _write_arguments(
    above: int,
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    bytes_max: int,
    dump: Callable[[Any, IO[bytes]], object],
) -> None:
    with (
        folders.writing(above, folders.ARGUMENTS, bytes_max) as file,
        folders.writing(above, folders.OFFSETS, bytes_max) as offsets,
    ):
        for args, kwargs in calls:
            offsets.write(folders.OFFSET.pack(file.tell()))
            dump((tuple(args), dict(kwargs)), file)


def discard(folder: Path) -> None:
    """Of a submission that did not happen."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def name_of(function: Callable[..., Any]) -> str:
    """What one would call the job: the function's name, in one word."""
    inner = _inner(function)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return (
        "".join(c if c.isascii() and (c.isalnum() or c in "._") else "" for c in name)[-NAME_MAX:]
        or "function"
    )


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


@contextmanager
def _by_value(function: Callable[..., Any], cloudpickle: Any) -> Iterator[None]:
    inner = _inner(function)
    name = getattr(inner, "__module__", None) or type(inner).__module__
    module = sys.modules.get(name)
    with _REGISTRY:
        if module is None or not is_users_own(module) or name in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def is_users_own(module: ModuleType) -> bool:
    """Neither Python's nor installed. (`__main__` goes by value anyway.)"""
    file = getattr(module, "__file__", None)
    name = module.__name__
    if not file or name == "__main__" or name.partition(".")[0] == "cotenant":
        return False
    paths = sysconfig.get_paths()
    installed = [paths[each] for each in ("stdlib", "platstdlib", "purelib", "platlib")]
    inside = [os.path.join(os.path.realpath(each), "") for each in installed]
    where = os.path.realpath(file)
    return not where.startswith(tuple(inside)) and "site-packages" not in where
