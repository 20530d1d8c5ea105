"""A function and its arguments on their way into a job.

Rule: a function goes by value, as it is now, with the module that it is from where that is the user's own
and not installed: what is edited later is another function. All else is imported in the job, where the path
is the submitter's. The function is pickled once, the arguments of each call by themselves."""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import os
import pickle
import re
import sys
import sysconfig
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple

from cotenant.controller.python import folders
from cotenant.controller.python.errors import BadCall, CotenantError
from cotenant.controller.python.folders import CallPlace, ResultReference
from cotenant.controller.python.inside import EACH_RANK, MODULE, WORK_DIR
from cotenant.controller.submission.starts import Start, start_of_function

WITHOUT_CLOUDPICKLE: Final = "pip install '.[api]' in cotenant's source folder"
NAME_MAX: Final = 64
_REGISTRY: Final = threading.RLock()
"""Which modules go by value is one list of the process's."""
_RANDOM: Final = re.compile(r"[0-9a-f]{32}")
"""As cloudpickle marks a class, differently in each process."""

ReferenceOf = Callable[[int, Any], ResultReference | None]
"""Of a value in the arguments of the call of this number: what stands for it; None: the value itself."""


class PackedCalls(NamedTuple):
    """A function and so many calls of it, on disk."""

    folder: Path
    name: str
    sha256: str
    """Of what the function does, without its arguments."""
    calls: int
    start: Start
    """How the function is started on several GPUs."""

    def argv(self, at: int, each_rank: bool) -> tuple[str, ...]:
        flags = (EACH_RANK,) if each_rank else ()
        return (sys.executable, "-m", MODULE, *flags, WORK_DIR, str(self.folder / str(at)), self.name)


def place_of(argv: Sequence[str]) -> CallPlace | None:
    """The place of a job's call, as the job's command names it; None: the command is not a call of a
    function."""
    if len(argv) < 6 or tuple(argv[1:3]) != ("-m", MODULE) or argv[-3] != WORK_DIR:
        return None
    return CallPlace(Path(argv[-2]), EACH_RANK in argv[3:-3])


def pack_calls(
    function: Callable[..., Any],
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    base: Path,
    reference_of: ReferenceOf = lambda at, value: None,
    keyed: bool = False,
    bytes_max: int = folders.CALL_BYTES_MAX,
) -> PackedCalls:
    """Writes a function and its calls into a folder. `keyed`: the folder's name tells what is in it, so that
    a second submission with its key is compared.

    Raises BadCall: something in the calls cannot be pickled, is too large, or cannot be written there.
    """
    try:
        import cloudpickle
    except ImportError:
        raise BadCall(
            "functions are sent with cloudpickle, which is not installed", WITHOUT_CLOUDPICKLE
        ) from None
    name = name_of(function)
    folder = None
    try:
        with _pickle_by_value(function, cloudpickle):
            code, sha256 = cloudpickle.dumps(function), fingerprint(function)
            payload = _payload(sha256, calls, reference_of) if keyed else ""
        folder = folders.make(base, payload)
        with folders.open_folder(folder) as above:
            with folders.writing(above, folders.FUNCTION, bytes_max) as file:
                pickle.dump(_path(), file)
                file.write(code)
            with _pickle_by_value(function, cloudpickle):
                _write_arguments(above, calls, bytes_max, reference_of, cloudpickle)
    except BaseException as error:
        if folder is not None:
            discard(folder)
        if isinstance(error, CotenantError):
            raise
        if isinstance(error, OSError):
            raise BadCall(f"{name} cannot be written to {base}: {error}", "give folder=") from None
        if isinstance(error, folders.TooLarge):
            raise BadCall(f"{name}: {error}", "put what is large into a file, and give its path") from None
        if isinstance(error, Exception):
            raise BadCall(f"{name} or its arguments cannot be pickled: {error}") from error
        raise
    return PackedCalls(folder, name, sha256, len(calls), _start_of(function))


def fingerprint(value: Any, reference_of: Callable[[Any], Any] = lambda value: None) -> str:
    """A hash that is the same in every process, and wherever in its file a function stands."""
    import cloudpickle

    try:
        return _fingerprint(value, reference_of, cloudpickle)
    except Exception:  # noqa: BLE001  # Something refers to itself by way of a set.
        return hashlib.sha256(cloudpickle.dumps(value)).hexdigest()


def _fingerprint(value: Any, reference_of: Callable[[Any], Any], cloudpickle: Any) -> str:
    class Fingerprint(cloudpickle.Pickler):  # type: ignore[misc]  # Nobody loads what it writes.
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, set | frozenset):
                return sorted(_fingerprint(each, reference_of, cloudpickle) for each in value)
            return reference_of(value)

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, CodeType):
                names = value.co_name, value.co_names, value.co_varnames, value.co_freevars
                return tuple, ((value.co_code, value.co_consts, *names),)
            found = super().reducer_override(value)
            if not isinstance(value, type) or not isinstance(found, tuple):
                return found
            made_of = ("" if isinstance(each, str) and _RANDOM.fullmatch(each) else each for each in found[1])
            return found[0], tuple(made_of), *found[2:]

    written = io.BytesIO()
    Fingerprint(written).dump(value)
    return hashlib.sha256(written.getbuffer()).hexdigest()


def _payload(
    function: str, calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]], reference_of: ReferenceOf
) -> str:
    """The hash of a function, which is given by its own hash, and of the arguments of all its calls."""

    def known_by(at: int, value: Any) -> object:
        """A job of the same batch has another folder each time, and the same payload."""
        job, place = reference_of(at, value) or (None, None)
        if place is None:
            return job
        return job, folders.payload_in(place.folder.parent) or place, place.folder.name, place.each_rank

    arguments = [
        fingerprint((tuple(args), sorted(kwargs.items())), functools.partial(known_by, at))
        for at, (args, kwargs) in enumerate(calls)
    ]
    return hashlib.sha256("".join((function, *arguments)).encode()).hexdigest()


def _write_arguments(
    above: int,
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    bytes_max: int,
    reference_of: ReferenceOf,
    cloudpickle: Any,
) -> None:
    class Arguments(cloudpickle.Pickler):  # type: ignore[misc]
        call = 0

        def persistent_id(self, value: Any) -> ResultReference | None:
            return reference_of(self.call, value)

    with (
        folders.writing(above, folders.ARGUMENTS, bytes_max) as file,
        folders.writing(above, folders.OFFSETS, bytes_max) as offsets,
    ):
        for at, (args, kwargs) in enumerate(calls):
            offsets.write(folders.OFFSET.pack(file.tell()))
            pickler = Arguments(file)
            pickler.call = at
            pickler.dump((tuple(args), dict(kwargs)))


def discard(folder: Path) -> None:
    """Removes the folder of a submission that did not happen."""
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


def _start_of(function: Callable[..., Any]) -> Start:
    """How a function is started, as the text says in which it was defined."""
    inner = _inner(function)
    place = inner if hasattr(inner, "__code__") else type(inner)
    name, file, text = str(getattr(place, "__name__", "")), None, ""
    try:
        found = Path(inspect.getsourcefile(place) or "")
        file = found if found.is_file() else None
        text = "" if file is not None else textwrap.dedent(inspect.getsource(place))
    except (OSError, TypeError):  # Typed at a prompt, or not written in Python.
        pass
    return start_of_function(name, file, text, (os.getcwd(), *os.environ.get("PYTHONPATH", "").split(":")))


def _path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


@contextmanager
def _pickle_by_value(function: Callable[..., Any], cloudpickle: Any) -> Iterator[None]:
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
