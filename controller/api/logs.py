"""Answers `ReadJobLog`: finds the host that holds an attempt's output and passes its answer on.

Rule: logs are for the job's owner and admins. A reader may have a few questions open at a time, so that one
`logs -f` does not keep others from reading.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from cotenant.controller.api.permissions import one_job
from cotenant.controller.api.submissions import Denied
from cotenant.controller.domain import ENDED, AttemptNo, HostId, Job, JobId, Phase
from cotenant.controller.history import AttemptRecord, JobRecord
from cotenant.controller.store import ReadingCore
from cotenant.controller.wire import LogReply, ReadLog
from cotenant.controller.wire import clients as wire

OPEN_PER_READER: Final = 8
PARKED_MAX: Final = 2_000
WAIT_S_MAX: Final = 60.0
NEVER: Final = "it never started"

AsksHost = Callable[[HostId, ReadLog, Callable[[LogReply], None]], None]
"""Calls the last with a host's answer."""
SendsLogPart = Callable[[wire.LogPart], None]


class Parked(NamedTuple):
    """A question about a log; parked while its job has not started yet."""

    reader: bytes
    request_id: int
    request: wire.ReadJobLog
    deadline_s: float
    answer: SendsLogPart


class LogRequests:
    """The handler of questions about logs."""

    def __init__(self, core: ReadingCore, ask: AsksHost) -> None:
        self._core = core
        self._ask_host = ask
        self._open: dict[bytes, set[int]] = {}
        """Questions by reader that are not answered yet."""
        self._parked: list[Parked] = []

    def read(self, reader: bytes, request_id: int, request: wire.ReadJobLog, answer: SendsLogPart) -> None:
        """`answer` is called once.

        Raises:
            Denied: no such job, attempt or rank, or too many questions at once.
        """
        if request_id in self._open.get(reader, ()):
            return  # The same question again: the first one's answer will do.
        if len(self._open.get(reader, ())) >= OPEN_PER_READER or len(self._parked) >= PARKED_MAX:
            raise Denied(
                "refused", "too many logs are being read at once", "wait for answers before asking on"
            )
        deadline_s = self._core.clock.now_s() + min(max(0.0, request.wait_s), WAIT_S_MAX)
        question = Parked(reader, request_id, request, deadline_s, answer)
        self._open.setdefault(reader, set()).add(request_id)
        try:
            self._ask_or_park(question)
        except Denied:
            self._close(question)
            raise

    def _answer(self, asked: Parked, part: wire.LogPart) -> None:
        self._close(asked)
        asked.answer(part)

    def _close(self, asked: Parked) -> None:
        mine = self._open.get(asked.reader, set())
        mine.discard(asked.request_id)
        if not mine:
            self._open.pop(asked.reader, None)

    def _ask_or_park(self, asked: Parked) -> None:
        record = one_job(self._core, asked.request.job_id)
        job = record.job
        if record.attempts:
            self._ask(asked, record)
        elif job.phase in ENDED:
            self._answer(asked, empty(asked, NEVER))
        elif asked.deadline_s <= self._core.clock.now_s():
            self._answer(asked, empty(asked, ""))
        else:
            self._parked.append(asked)

    def _ask(self, asked: Parked, record: JobRecord) -> None:
        """Pass the question on to the host that holds the output."""
        request, job, attempts = asked.request, record.job, record.attempts
        job_id = job.job_id
        number = attempts[-1].attempt if request.attempt is None else request.attempt
        attempt_record = next((s for s in attempts if s.attempt == number), None)
        if attempt_record is None:
            raise Denied("not-found", f"job {job_id} has no attempt {number}")
        logs = logs_of(job, attempt_record)
        if not 0 <= request.rank < len(logs):
            raise Denied("not-found", f"job {job_id} has {ranks_of(len(logs))}, no rank {request.rank}")
        host_id, rank = logs[request.rank]
        question = ReadLog(
            request=0,
            job_id=job_id,
            attempt=AttemptNo(number),
            rank=rank,
            offset=max(0, request.offset),
            limit=max(1, request.limit),
            wait_s=max(0.0, asked.deadline_s - self._core.clock.now_s()),
            job_epoch=job.epoch,
            errors_apart=request.errors_apart,
        )
        self._ask_host(host_id, question, partial(self._came, asked, record, attempt_record, len(logs)))

    def _came(
        self, asked: Parked, record: JobRecord, attempt_record: AttemptRecord, ranks: int, reply: LogReply
    ) -> None:
        job_id, ended = asked.request.job_id, attempt_record.ended_s is not None
        missing, closed = reply.missing, reply.closed or bool(reply.missing and ended)
        if reply.request and missing and not ended and self._is_starting(job_id):
            if self._core.clock.now_s() < asked.deadline_s:
                self._parked.append(asked)
                return
            missing, closed = "", False
        part = wire.LogPart(
            request_id=asked.request_id,
            job_id=job_id,
            attempt=attempt_record.attempt,
            rank=asked.request.rank,
            data=reply.data,
            next_offset=reply.next_offset,
            at_end=reply.at_end,
            closed=closed,
            attempts=tuple(s.attempt for s in record.attempts),
            ranks=ranks,
            missing=missing,
            is_error=reply.is_error,
        )
        self._answer(asked, part)

    def _is_starting(self, job_id: JobId) -> bool:
        """Whether its agent may not have heard of it yet, so that missing output means nothing."""
        job = self._core.state.engine.jobs.get(job_id)
        return job is not None and job.phase is Phase.LOADING

    def look_again(self) -> None:
        """Something happened, or time passed: jobs may have started."""
        parked, self._parked = self._parked, []
        for each in parked:
            try:
                self._ask_or_park(each)
            except Denied as denied:
                self._answer(each, empty(each, str(denied)))


def logs_of(job: Job, attempt_record: AttemptRecord) -> list[tuple[HostId, int]]:
    """The host and rank of each output: one per rank, or one per host if the command runs once per host."""
    if job.spec.launch.mode == "worker":
        return [(host_id, rank) for rank, host_id in enumerate(attempt_record.hosts)]
    first_ranks: dict[HostId, int] = {}
    for rank, host_id in enumerate(attempt_record.hosts):
        first_ranks.setdefault(host_id, rank)
    return list(first_ranks.items())


def ranks_of(count: int) -> str:
    return "only rank 0" if count == 1 else f"ranks 0 to {count - 1}"


def empty(parked: Parked, missing: str) -> wire.LogPart:
    """An answer without output: there is none yet, or (`missing`) there never will be."""
    return wire.LogPart(
        request_id=parked.request_id,
        job_id=parked.request.job_id,
        attempt=0,
        rank=parked.request.rank,
        data=b"",
        next_offset=parked.request.offset,
        at_end=True,
        closed=bool(missing),
        attempts=(),
        ranks=0,
        missing=missing,
    )
