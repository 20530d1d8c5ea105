"""Answers a controller's questions for pieces of logs.

Rule: bounded in every direction: so many questions at a time, so many bytes an answer, so long a wait.
Flow control is the asker's: it asks for the next piece when it has passed this one on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.agent.daemon.tasks import Tasks
from cotenant.agent.ipc import LOGS, RESULT
from cotenant.agent.supervisor.processes import log_end, read_log
from cotenant.controller.wire import LogReply, ReadLog

QUESTIONS_MAX: Final = 64
BYTES_MAX: Final = 256 * 1024
WAIT_S_MAX: Final = 60.0
_LOOK_PERIOD_S: Final = 0.2


class LogReader:
    def __init__(self, folder_of: Callable[[str, int], Path], reply: Callable[[LogReply], None]) -> None:
        self._folder_of = folder_of
        self._reply = reply
        self._tasks = Tasks("reading a log")

    def answer(self, read: ReadLog) -> None:
        """At once if there are new lines, else when there are, or when the request's time limit ends."""
        reply = look(self._folder_of(read.job_id, read.attempt), read)
        wait = read.wait_s > 0 and reply.at_end and not reply.data and not reply.closed and not reply.missing
        if not wait or len(self._tasks) >= QUESTIONS_MAX:
            self._reply(reply)
            return
        self._tasks.keep(self._follow(read))

    async def _follow(self, read: ReadLog) -> None:
        folder = self._folder_of(read.job_id, read.attempt)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(read.wait_s, WAIT_S_MAX)
        while loop.time() < until_s:
            await asyncio.sleep(_LOOK_PERIOD_S)
            if log_end(folder / LOGS, read.rank) > read.offset or (folder / RESULT).exists():
                break
        self._reply(look(folder, read))

    def close(self) -> None:
        self._tasks.cancel()


def look(folder: Path, read: ReadLog) -> LogReply:
    """What there is now. The end is looked for first: what is written before it is read after it."""
    ended = (folder / RESULT).exists()
    limit = max(1, min(read.limit, BYTES_MAX))
    part = read_log(folder / LOGS, read.rank, read.offset, limit)
    if part is None:
        missing = "" if folder.is_dir() and not ended else _why_nothing(folder, read)
        return LogReply(
            request=read.request,
            data=b"",
            next_offset=max(0, read.offset),
            at_end=True,
            closed=ended or bool(missing),
            missing=missing,
        )
    at_end = part.next_offset >= part.end
    return LogReply(
        request=read.request,
        data=part.data,
        next_offset=part.next_offset,
        at_end=at_end,
        closed=at_end and ended,
    )


def _why_nothing(folder: Path, read: ReadLog) -> str:
    what = f"job {read.job_id} attempt {read.attempt}"
    if not folder.is_dir():
        return f"{what} left no log here: it never started, or it was removed after agent.prune_after_days"
    return f"{what} has no log of rank {read.rank} here"
