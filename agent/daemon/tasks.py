"""Work that goes on beside the agent's loop until it is done, or until the agent leaves: waiting for news of
GPUs, and answering the controller's questions for pieces of logs.

Rule: a task that is not awaited is kept in `Tasks`, else it may be collected half done, and its exception be
lost. A task works for one job or one answer, often on a user's bytes, so an exception of it fails that one
and is logged, whatever it is; only `BadState` goes to the loop's handler, which ends the agent. Everything is
bounded, and nothing here blocks the loop.

GPUs that an attempt has left: `GpuWatch.given_back` waits for their memory. The answer comes after a probe of
each of its devices that began when the attempt had gone, and so after all errors that their watchers knew
of then. The cause of an attempt's failure may be an error that is not reported yet: it waits a moment longer,
and for a round of the MPS daemons as well.

Logs are bounded in every direction: so many questions at a time, so many bytes an answer, so long a wait.
Flow control is the asker's: it asks for the next piece when it has passed this one on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from cotenant.agent.daemon.agent_log import log_error, shorten_error
from cotenant.agent.daemon.core.edge import AnyAgentEvent, AwaitMemory, MemoryFree, MemoryHeld
from cotenant.agent.daemon.loop import BadState
from cotenant.agent.gpus.gpu_watch import GpuWatch
from cotenant.agent.ipc.records import LOGS, RESULT
from cotenant.agent.supervisor.processes.logs import log_end, read_log
from cotenant.controller.wire import LogReply, ReadLog

AGAIN_S: Final = 10.0


@contextmanager
def contain_failure(doing: str, failed: Callable[[str], None] | None = None) -> Iterator[None]:
    """Whatever goes wrong in here is logged and fails one job or answer, by a call of `failed` with why.

    Raises:
        BadState: more than that may be wrong.
    """
    try:
        yield
    except BadState:
        raise
    except Exception as error:  # noqa: BLE001 - work on somebody's bytes may fail in any way
        log_error(doing, error)
        if failed is not None:
            failed(f"{doing} failed by an internal error of the agent: {shorten_error(error)}")


class Tasks:
    def __init__(self, doing: str) -> None:
        """Makes an empty set of tasks. `doing`: what fails if one of them does, for the log."""
        self._doing = doing
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, work: Coroutine[Any, Any, None], failed: Callable[[str], None] | None = None) -> None:
        """Lets it go on beside the loop. `failed`: fails what it was about, if it fails itself."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, failed))

    def keep_up(self, make: Callable[[], Coroutine[Any, Any, None]], again_s: float = AGAIN_S) -> None:
        """Lets work go on until the agent leaves: it begins again if it fails."""

        async def work() -> None:
            while True:
                with contain_failure(self._doing):
                    await make()
                await asyncio.sleep(again_s)

        self.keep(work())

    def _finish(self, failed: Callable[[str], None] | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        try:
            with contain_failure(self._doing, failed):
                task.result()
        except BadState as error:
            context = {"message": f"{self._doing} failed", "exception": error}
            task.get_loop().call_exception_handler(context)

    def __len__(self) -> int:
        return len(self._tasks)

    def cancel(self) -> None:
        """Cancels all tasks for callers that cannot wait: the loop finishes the cancellation."""
        for task in list(self._tasks):
            task.cancel()

    async def leave(self) -> None:
        """Stop all of them, and wait until they have."""
        tasks = list(self._tasks)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- GPUs that an attempt has left -----------------------------------------------------------------


NEWS_S: Final = 2.0
"""Between a failure and the probes that count: no document says whether the driver logs an error before the
process that it hits learns of it."""
DAEMONS_S: Final = 10.0
"""A wedged daemon delays a verdict by no more than this."""


class GpuRelease:
    """A task for each attempt that waits."""

    def __init__(
        self,
        post: Callable[[AnyAgentEvent], None],
        watch: GpuWatch | None,
        daemons: Callable[[], Awaitable[None]] | None = None,
        *,
        news_s: float = NEWS_S,
        daemons_s: float = DAEMONS_S,
    ) -> None:
        """Prepares to wait for the memory of GPUs. `daemons()`: returns when every MPS daemon was looked at
        anew, and what was seen is posted."""
        self._post = post
        self._watch = watch
        self._daemons = daemons
        self._news_s, self._daemons_s = news_s, daemons_s
        self._tasks = Tasks("waiting for a device's memory")

    def wait(self, asked: AwaitMemory) -> None:
        """Answers `MemoryFree` or `MemoryHeld`."""
        uuids = [device.local for device in asked.devices]
        held = partial(MemoryHeld, job_id=asked.job_id, attempt=asked.attempt)
        self._tasks.keep(self._wait(asked), lambda why: self._post(held(holders=dict.fromkeys(uuids, why))))

    async def _wait(self, asked: AwaitMemory) -> None:
        job_id, attempt = asked.job_id, asked.attempt
        if asked.failed:
            await asyncio.sleep(self._news_s)
            if self._daemons is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._daemons(), self._daemons_s)
        held: dict[str, str] = {}
        cuda: dict[str, str] = {}
        if self._watch is not None:
            uuids = [device.local for device in asked.devices]
            held = await self._watch.given_back((job_id, attempt), uuids)
            cuda = await self._watch.cuda.answers(uuids) if asked.tries_cuda else {}
        if held:
            self._post(MemoryHeld(job_id=job_id, attempt=attempt, holders=held, cuda=cuda))
        else:
            self._post(MemoryFree(job_id=job_id, attempt=attempt, cuda=cuda))

    async def leave(self) -> None:
        """Stops waiting for memory: the next start of the agent asks again."""
        await self._tasks.leave()


# --- Logs ------------------------------------------------------------------------------------------


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
        """Answers a request for a log: at once if there are new lines, else when there are, or when the
        request's time limit ends."""
        reply = self._look(read)
        wait = read.wait_s > 0 and reply.at_end and not reply.data and not reply.closed and not reply.missing
        if not wait or len(self._tasks) >= QUESTIONS_MAX:
            self._reply(reply)
            return
        self._tasks.keep(self._follow(read), lambda why: self._reply(_no_log(read, why)))

    def _look(self, read: ReadLog) -> LogReply:
        try:
            return look(self._folder_of(read.job_id, read.attempt), read)
        except (OSError, ValueError) as error:
            return _no_log(read, f"the log of job {read.job_id} cannot be read: {shorten_error(error)}")

    async def _follow(self, read: ReadLog) -> None:
        folder = self._folder_of(read.job_id, read.attempt)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(read.wait_s, WAIT_S_MAX)
        while loop.time() < until_s:
            await asyncio.sleep(_LOOK_PERIOD_S)
            if log_end(folder / LOGS, read.rank) > read.offset or (folder / RESULT).exists():
                break
        self._reply(self._look(read))

    def close(self) -> None:
        self._tasks.cancel()


def look(folder: Path, read: ReadLog) -> LogReply:
    """Returns what there is of the log now. The end is looked for first: what is written before it is read
    after it."""
    ended = (folder / RESULT).exists()
    limit = max(1, min(read.limit, BYTES_MAX))
    part = read_log(folder / LOGS, read.rank, read.offset, limit, errors_apart=read.errors_apart)
    if part is None:
        missing = "" if folder.is_dir() and not ended else _why_nothing(folder, read)
        return _no_log(read, missing, closed=ended or bool(missing))
    at_end = part.next_offset >= part.end
    return LogReply(
        request=read.request,
        data=part.data,
        next_offset=part.next_offset,
        at_end=at_end,
        closed=at_end and ended,
        is_error=part.is_error,
    )


def _no_log(read: ReadLog, missing: str, *, closed: bool = True) -> LogReply:
    return LogReply(
        request=read.request,
        data=b"",
        next_offset=max(0, read.offset),
        at_end=True,
        closed=closed,
        missing=missing,
    )


def _why_nothing(folder: Path, read: ReadLog) -> str:
    what = f"job {read.job_id} attempt {read.attempt}"
    if not folder.is_dir():
        return f"{what} left no log here: it never started, or it was removed after agent.prune_after_days"
    return f"{what} has no log of rank {read.rank} here"
