"""Answers `ReadJobLog`: finds the host that holds an attempt's output and passes its answer on.

Rule: logs are for the job's owner and admins. A reader may have a few questions open at a time, so that
nobody's `logs -f` keeps others from reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.agents_link import AgentsLink
from cotenant.controller.core import Core
from cotenant.controller.domain.ids import AttemptNo, HostId
from cotenant.controller.domain.job import ENDED, Job
from cotenant.controller.history import Stretch
from cotenant.controller.log_relay import LogQuestion
from cotenant.controller.submitting import Denied
from cotenant.controller.wire.agents import LogReply
from cotenant.controller.wire.clients import LogPart, ReadJobLog

OPEN_PER_READER: Final = 8
PARKED_MAX: Final = 2_000
WAIT_S_MAX: Final = 60.0
NEVER: Final = "it never started"

Answer = Callable[[LogPart], None]


class Parked(NamedTuple):
    """A question about a job that has not started yet."""

    reader: bytes
    request_id: int
    request: ReadJobLog
    deadline_s: float
    answer: Answer


class LogDesk:
    """Questions about logs."""

    def __init__(self, core: Core, link: AgentsLink) -> None:
        self._core = core
        self._link = link
        self._open: Counter[bytes] = Counter()
        self._parked: list[Parked] = []

    def read(self, reader: bytes, request_id: int, request: ReadJobLog, answer: Answer) -> None:
        """`answer` is called once.

        Raises:
            Denied: no such job, attempt or rank, or too many questions at once.
        """
        if self._open[reader] >= OPEN_PER_READER or len(self._parked) >= PARKED_MAX:
            raise Denied(
                "refused", "too many logs are being read at once", "wait for answers before asking on"
            )
        wait_s = min(max(0.0, request.wait_s), WAIT_S_MAX)
        stretches = self._core.state.history.stretches(request.job_id)
        if not stretches:
            self._not_started(Parked(reader, request_id, request, self._core.clock.now_s() + wait_s, answer))
            return
        number = stretches[-1].attempt if request.attempt is None else request.attempt
        stretch = next((s for s in stretches if s.attempt == number), None)
        if stretch is None:
            raise Denied("not-found", f"job {request.job_id} has no attempt {number}")
        self._ask(reader, request_id, request, stretch, wait_s, answer)

    def _ask(
        self,
        reader: bytes,
        request_id: int,
        request: ReadJobLog,
        stretch: Stretch,
        wait_s: float,
        answer: Answer,
    ) -> None:
        job = self._core.state.engine.jobs[request.job_id]
        logs = logs_of(job, stretch)
        if not 0 <= request.rank < len(logs):
            raise Denied("not-found", f"job {request.job_id} has ranks 0 to {len(logs) - 1}")
        host_id, rank = logs[request.rank]
        attempts = tuple(s.attempt for s in self._core.state.history.stretches(request.job_id))
        self._open[reader] += 1

        def came(reply: LogReply) -> None:
            self._open[reader] -= 1
            if self._open[reader] <= 0:
                del self._open[reader]
            if (
                reply.request
                and reply.missing
                and host_id not in job.started_hosts
                and stretch.ended_s is None
            ):
                reply = msgspec.structs.replace(reply, missing="", closed=False)  # Not written yet.
            closed = reply.closed or bool(reply.missing and stretch.ended_s is not None)
            part = LogPart(
                request_id=request_id,
                job_id=request.job_id,
                attempt=stretch.attempt,
                rank=request.rank,
                data=reply.data,
                next_offset=reply.next_offset,
                at_end=reply.at_end,
                closed=closed,
                attempts=attempts,
                ranks=len(logs),
                missing=reply.missing,
            )
            answer(part)

        question = LogQuestion(
            job_id=request.job_id,
            attempt=AttemptNo(stretch.attempt),
            rank=rank,
            offset=max(0, request.offset),
            limit=max(1, request.limit),
            wait_s=wait_s,
        )
        self._link.logs.ask(host_id, question, came)

    def _not_started(self, parked: Parked) -> None:
        """A job that may still start is waited for; one that ended before it started has no output."""
        job = self._core.state.engine.jobs[parked.request.job_id]
        if job.phase in ENDED or parked.deadline_s <= self._core.clock.now_s():
            parked.answer(empty(parked, job, NEVER if job.phase in ENDED else ""))
        else:
            self._parked.append(parked)

    def look_again(self, now_s: float) -> None:
        """Something happened, or time passed: jobs may have started."""
        parked, self._parked = self._parked, []
        for each in parked:
            job_id = each.request.job_id
            job = self._core.state.engine.jobs.get(job_id)
            if job is None:
                continue
            if self._core.state.history.stretches(job_id) and job.phase not in ENDED:
                left_s = max(0.0, each.deadline_s - now_s)
                stretch = self._core.state.history.stretches(job_id)[-1]
                try:
                    self._ask(each.reader, each.request_id, each.request, stretch, left_s, each.answer)
                except Denied as denied:
                    each.answer(empty(each, job, str(denied)))
            elif job.phase in ENDED or each.deadline_s <= now_s:
                each.answer(empty(each, job, NEVER if job.phase in ENDED else ""))
            else:
                self._parked.append(each)


def logs_of(job: Job, stretch: Stretch) -> list[tuple[HostId, int]]:
    """Where each output is: one per rank, or one per host if the command runs once per host."""
    if job.spec.launch.mode == "worker":
        return [(host_id, rank) for rank, host_id in enumerate(stretch.hosts)]
    first_ranks: dict[HostId, int] = {}
    for rank, host_id in enumerate(stretch.hosts):
        first_ranks.setdefault(host_id, rank)
    return list(first_ranks.items())


def empty(parked: Parked, job: Job, missing: str) -> LogPart:
    """Nothing yet, or (with a reason) nothing ever."""
    return LogPart(
        request_id=parked.request_id,
        job_id=job.job_id,
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
