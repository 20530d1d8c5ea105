"""Logs stay on their hosts; this module passes questions to the agents, and their answers back.

Rule: one bounded piece per question, so a slow reader slows no other. Every question is answered once: with
data, or with what is missing and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cotenant.controller.domain import AttemptNo, HostId, JobId
from cotenant.controller.store import Clock
from cotenant.controller.wire import LogReply, ReadLog, ToAgent

OPEN_MAX: Final = 1_000
PATIENCE_S: Final = 10.0
"""How long an agent may take beyond the time it was asked to wait."""
PIECE_BYTES_MAX: Final = 1024 * 1024


class LogQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one rank's output."""

    job_id: JobId
    attempt: AttemptNo
    rank: int
    offset: int
    limit: int
    wait_s: float = 0.0
    job_epoch: str = ""


Answer = Callable[[LogReply], None]


class ControllerLogRelay:
    """Questions that agents have not answered yet."""

    def __init__(self, clock: Clock, say: Callable[[HostId, ToAgent], bool]) -> None:
        self._clock = clock
        self._say = say
        self._open: dict[int, tuple[HostId, LogQuestion, Answer, float]] = {}
        self._count = 0

    def ask(self, host_id: HostId, question: LogQuestion, answer: Answer) -> None:
        """`answer` is called once, now or later."""
        if len(self._open) >= OPEN_MAX:
            answer(nothing(question, "too many logs are being read at once"))
            return
        self._count += 1
        read = ReadLog(
            request=self._count,
            job_id=question.job_id,
            attempt=question.attempt,
            rank=question.rank,
            offset=question.offset,
            limit=min(question.limit, PIECE_BYTES_MAX),
            wait_s=question.wait_s,
            job_epoch=question.job_epoch,
        )
        if not self._say(host_id, read):
            answer(nothing(question, f"host {host_id} is not connected"))
            return
        deadline_s = self._clock.now_s() + question.wait_s + PATIENCE_S
        self._open[self._count] = (host_id, question, answer, deadline_s)

    def came(self, host_id: HostId, reply: LogReply) -> None:
        """An answer; one that is not waited for, or from another host, is dropped."""
        asked = self._open.get(reply.request)
        if asked is not None and asked[0] == host_id:
            del self._open[reply.request]
            asked[2](reply)

    def tick(self, now_s: float) -> None:
        overdue = [request for request, asked in self._open.items() if asked[3] < now_s]
        for request in overdue:
            host_id, question, answer, _ = self._open.pop(request)
            answer(nothing(question, f"host {host_id} does not answer"))


def nothing(question: LogQuestion, why: str) -> LogReply:
    return LogReply(request=0, data=b"", next_offset=question.offset, at_end=True, closed=False, missing=why)
