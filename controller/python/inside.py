"""In the job: load a function, call it, and leave behind what it returned or raised.

Rule: `python -m cotenant.controller.python.inside --work-dir FOLDER NAME` is a training script like
another: it gets the environment, the Session, the stop and the exit code of one, starts warm or cold as one
does, and what leaves the process by itself (`sys.exit`, a Session that has to make room) leaves. Standard
library and cloudpickle only, but where arguments are the results of other jobs."""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from cotenant.controller.python import folders
from cotenant.controller.python.folders import ResultReference

MODULE: Final = "cotenant.controller.python.inside"
EACH_RANK: Final = "--each-rank"
"""Every rank's result is kept, else that of rank 0."""
WORK_DIR: Final = "--work-dir"
"""Of a name that does not make a job another kind of job."""
TEXT_MAX: Final = 64 * 1024


def main(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Runs a call of a function in its job, and returns the exit code."""
    task = Path(words[words.index(WORK_DIR) + 1])
    rank = int(environ.get("RANK", "0"))
    head = {
        "version": folders.VERSION,
        "attempt": int(environ.get("COTENANT_ATTEMPT", "0")),
        "rank": rank,
        "ranks": int(environ.get("WORLD_SIZE", "1")),
    }
    name = folders.RESULT.format(rank=rank)
    try:
        _remove_earlier(task, name)
        function = _function(task)
        args, kwargs = arguments_of(task, _result_of)
        value = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # Whatever the function raises is told to who waits for it.
        text = "".join(traceback.format_exception(type(error), error, _user_traceback(error)))
        with suppress(OSError):
            sys.stderr.write(text)
        _tell(task, rank, head, error, text)
        return 1
    try:
        if rank == 0 or EACH_RANK in words:
            _write(task, name, head, lambda file: _dump(value, file))
    except Exception as error:  # noqa: BLE001  # Pickling it may fail in any way.
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        lost = f"returned a value of type {kind}, which cannot be kept: {type(error).__name__}: {error}"
        with suppress(OSError):
            sys.stderr.write(f"the function {lost}\n")
        _write(task, folders.ERROR.format(rank=rank), {**head, "lost": lost[:TEXT_MAX]}, lambda file: None)
        return 1
    return 0


def _remove_earlier(task: Path, name: str) -> None:
    """An earlier attempt's result is not this one's, and must not pass for it."""
    with suppress(FileNotFoundError), folders.task_folder(task) as folder:
        os.unlink(name, dir_fd=folder)


def _function(task: Path) -> Callable[..., Any]:
    with (
        folders.open_folder(task.parent) as above,
        folders.reading(above, folders.FUNCTION, folders.CALL_BYTES_MAX) as file,
    ):
        path = pickle.load(file)
        sys.path += [entry for entry in path if entry not in sys.path]
        function: Callable[..., Any] = pickle.load(file)
    return function


def arguments_of(
    task: Path, stands_for: Callable[[ResultReference], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns a call's arguments by position and by name. `stands_for`: a value in place of each handle of
    another job."""
    size = folders.OFFSET.size
    with folders.open_folder(task.parent) as above:
        with folders.reading(above, folders.OFFSETS, folders.CALL_BYTES_MAX) as file:
            file.seek(int(task.name) * size)
            (offset,) = folders.OFFSET.unpack(file.read(size))
        with folders.reading(above, folders.ARGUMENTS, folders.CALL_BYTES_MAX) as file:
            file.seek(offset)
            args, kwargs = _Arguments(file, stands_for).load()
    return args, kwargs


class _Arguments(pickle.Unpickler):
    def __init__(self, file: IO[bytes], stands_for: Callable[[ResultReference], Any]) -> None:
        super().__init__(file)
        self._stands_for = stands_for

    def persistent_load(self, pid: Any) -> Any:
        return self._stands_for(pid)


def _result_of(reference: ResultReference) -> Any:
    from cotenant.controller.python.results import result_of

    return result_of(*reference)


def _user_traceback(error: BaseException) -> Any:
    """The traceback without frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace or error.__traceback__


def _tell(task: Path, rank: int, head: dict[str, Any], error: Exception, text: str) -> None:
    """The exception itself where it can be pickled; its words in any case."""
    words = {
        "type": type(error).__qualname__,
        "message": str(error)[:TEXT_MAX],
        "traceback": text[-TEXT_MAX:],
    }
    name = folders.ERROR.format(rank=rank)
    try:
        _write(task, name, {**head, **words}, lambda file: _dump(error, file))
    except OSError:
        raise  # Nothing can be left behind there.
    except Exception:  # noqa: BLE001  # Pickling it may fail in any way.
        _write(task, name, {**head, **words, "words_only": True}, lambda file: None)


def _write(task: Path, name: str, head: dict[str, Any], dump: Callable[[IO[bytes]], object]) -> None:
    with (
        folders.task_folder(task, made=True) as folder,
        folders.writing(folder, name, folders.RESULT_BYTES_MAX) as file,
    ):
        file.write(json.dumps(head).encode() + b"\n")
        dump(file)


def _dump(value: object, file: IO[bytes]) -> None:
    import cloudpickle

    cloudpickle.dump(value, file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
