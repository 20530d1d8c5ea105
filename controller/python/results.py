"""The result of an ended job: a value, the function's own exception, or an error that says how it ended.
Rule: only the controller says how a job ended; files hold only what it cannot know. A result counts if it is
of the attempt that ended: an earlier attempt may have left one behind.
"""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from cotenant.controller.domain import Phase
from cotenant.controller.python import errors, folders
from cotenant.controller.python.folders import VERSION, CallPlace
from cotenant.controller.wire import BadMessage, decode_json
from cotenant.controller.wire import clients as wire

TIME_LIMITS: Final = ("time-limit", "time-limit-loading")
"""Reason codes of an end."""
ARRIVES_WITHIN_S: Final = 10.0
"""A file that another host wrote may be seen later on a network file system."""
LOOK_S: Final = 0.05
HEAD_BYTES_MAX: Final = 1024 * 1024
LOG_TAIL_LINES: Final = 20


class ResultHead(msgspec.Struct, frozen=True):
    """The first line of a result's file, as `inside.py` writes it; what was pickled follows."""

    version: int
    attempt: int
    rank: int
    ranks: int
    """Of the attempt."""
    type: str = ""
    """Here and below, of what was raised."""
    message: str = ""
    traceback: str = ""
    words_only: bool = False
    """It could not be pickled."""
    lost: str = ""
    """Why there is no result although the function returned."""


def outcome(
    view: wire.JobView,
    place: CallPlace | None,
    log_tail: Callable[[], str],
    arrives_within_s: float = ARRIVES_WITHIN_S,
) -> Any:
    """Returns the outcome of a job that is over. The outcome of a command is 0.

    Raises:
        JobFailed: or one of its kinds; or what the function raised.
    """
    reason = reason_text(view)
    if view.phase is Phase.CANCELLED:
        raise errors.JobCancelled(view.job_id, reason)
    if view.is_given_up:
        hint = f"{reason} (`cotenant release {view.job_id}` tries it again)"
        raise errors.JobLost(view.job_id, hint)
    if view.phase is Phase.DONE:
        return _value(view, place, arrives_within_s) if place is not None else view.exit_code or 0
    if view.reason_code in TIME_LIMITS:
        raise errors.JobTimedOut(view.job_id, reason, view.exit_code, log_tail())
    if place is not None:
        _raise_theirs(view, place)
    raise errors.JobFailed(view.job_id, reason, view.exit_code, log_tail())


def reason_text(view: wire.JobView) -> str:
    """The state and the reason of a job, such as `failed: exit code 3`; a reason that begins with the state
    says it once."""
    state = view.phase.value
    return view.reason if view.reason.startswith(state) else f"{state}: {view.reason}"


def _value(view: wire.JobView, place: CallPlace, arrives_within_s: float) -> Any:
    values = [
        _load(view.job_id, view.attempt, place.folder, rank, arrives_within_s)[1]
        for rank in range(view.gpus if place.each_rank else 1)
    ]
    return values if place.each_rank else values[0]


def result_of(job_id: str, place: CallPlace | None, arrives_within_s: float = ARRIVES_WITHIN_S) -> Any:
    """Returns the result of a job that has finished, for a job that started after it and so asks no
    controller. The result of a command is 0.

    Raises NoResult.
    """
    if place is None:
        return 0
    head, first = _load(job_id, None, place.folder, 0, arrives_within_s)
    if not place.each_rank:
        return first
    load = functools.partial(_load, job_id, head.attempt, place.folder, arrives_within_s=arrives_within_s)
    return [first, *(load(rank)[1] for rank in range(1, head.ranks))]


def _load(
    job_id: str, attempt: int | None, task: Path, rank: int, arrives_within_s: float
) -> tuple[ResultHead, Any]:
    """Loads the result of one rank. `attempt`: None is any; a file of an earlier attempt is removed as the
    next begins."""
    name = folders.RESULT.format(rank=rank)
    until_s = time.monotonic() + arrives_within_s
    while True:
        try:
            with (
                folders.task_folder(task) as folder,
                folders.reading(folder, name, folders.RESULT_BYTES_MAX) as file,
            ):
                head = _head(file)
                if attempt in (None, head.attempt):
                    return head, _unpickle_result(job_id, file)
                left = f"its result is of attempt {head.attempt}, and attempt {attempt} ended"
        except FileNotFoundError:
            left = "it left no result: did its function end the process itself?"
        except (folders.NotPrivate, folders.TooLarge, OSError) as error:
            raise errors.NoResult(job_id, f"finished, but {error}") from None
        if time.monotonic() > until_s:
            raise errors.NoResult(job_id, f"finished, but {left} ({task})")
        time.sleep(LOOK_S)


def _unpickle_result(job_id: str, file: IO[bytes]) -> Any:
    try:
        return pickle.load(file)
    except Exception as error:
        text = f"finished, but its result cannot be loaded here: {type(error).__name__}: {error}"
        raise errors.NoResult(job_id, text) from error


def _raise_theirs(view: wire.JobView, place: CallPlace) -> None:
    """What the function raised in the attempt that ended, on its lowest rank that did; returns if nothing."""
    for rank in range(view.gpus):
        try:
            with (
                folders.task_folder(place.folder) as folder,
                folders.reading(folder, folders.ERROR.format(rank=rank), folders.RESULT_BYTES_MAX) as file,
            ):
                head = _head(file)
                if head.attempt != view.attempt:
                    continue
                if head.lost:
                    raise errors.NoResult(view.job_id, head.lost, view.exit_code)
                error = _exception(head, file)
        except (folders.NotPrivate, folders.TooLarge, OSError):
            continue
        raise error from errors.RemoteTraceback(head.traceback)


def _exception(head: ResultHead, file: IO[bytes]) -> Exception:
    words = errors.RemoteError(head.type, head.message)
    if head.words_only:
        return words
    try:
        error = pickle.load(file)
    except Exception:  # noqa: BLE001  # Its class may not be here, or not be made from what was kept.
        return words
    return error if isinstance(error, Exception) else words


def _head(file: IO[bytes]) -> ResultHead:
    """Reads the head of a result's file. Raises OSError: the file is none of ours, or of a newer version."""
    try:
        head: ResultHead = decode_json(file.readline(HEAD_BYTES_MAX), ResultHead, bytes_max=HEAD_BYTES_MAX)
    except BadMessage as error:
        raise OSError(f"the file of its result is damaged: {error}") from None
    if head.version != VERSION:
        raise OSError(f"the file of its result has version {head.version}, not {VERSION}")
    return head


def home() -> Path:
    """Where calls lie that were given no `folder=`: on a cluster a home folder is usually on all hosts."""
    from platformdirs import user_state_path

    return user_state_path("cotenant", appauthor=False) / "functions"
