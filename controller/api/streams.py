"""Answers `UseStream`: passes questions about a job's terminal and ports on to its host, and answers back.

Rule: a stream is for the job's owner alone. An admin may read logs and end jobs; who types into a terminal
acts as its user. Nothing is looked into or kept, and a user may have so many questions open at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from cotenant.controller.api.permissions import must_be_owner, one_job
from cotenant.controller.api.submissions import Denied
from cotenant.controller.domain import ON_DEVICES, AttemptNo
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import AskStream, StreamReply, StreamTold
from cotenant.controller.wire import clients as wire

OPEN_PER_USER: Final = 256
WAIT_S_MAX: Final = 30.0

SendsStreamUsed = Callable[[wire.StreamUsed], None]


class StreamRequests:
    """The relay of questions about streams."""

    def __init__(self, core: Core, link: AgentExecutor) -> None:
        self._core = core
        self._link = link
        self._open: set[tuple[bytes, int]] = set()
        self._users: Counter[str] = Counter()
        """How many each user has open."""

    def ask(
        self, reader: bytes, request_id: int, request: wire.UseStream, who: Identity, answer: SendsStreamUsed
    ) -> None:
        """`answer` is called once.

        Raises:
            Denied: no such job, not the asker's, without a terminal, or too many questions at once.
        """
        record = one_job(self._core, request.job_id)
        job = record.job
        must_be_owner(who, job, "connect to")
        if not job.spec.launch.terminal:
            raise Denied(
                "usage", f"job {job.job_id} has no terminal", f"its output: cotenant logs -f {job.job_id}"
            )
        if not 0 <= request.ask.wait_s <= WAIT_S_MAX:
            raise Denied("usage", f"wait_s must be 0 to {WAIT_S_MAX:g}, got {request.ask.wait_s}")
        if job.phase not in ON_DEVICES or request.attempt != job.attempt.number:
            answer(wire.StreamUsed(request_id=request_id, told=StreamTold(state="ended")))
            return
        key = reader, request_id
        if key in self._open:
            return  # The same question again: the first one's answer will do.
        if self._users[who.name] >= OPEN_PER_USER:
            raise Denied("refused", "too many connections to terminals and ports are in use", "close some")
        self._open.add(key)
        self._users[who.name] += 1

        def came(reply: StreamReply) -> None:
            self._open.discard(key)
            self._users[who.name] -= 1
            answer(wire.StreamUsed(request_id=request_id, told=reply.told))

        question = AskStream(
            request=0,
            job_id=job.job_id,
            attempt=AttemptNo(request.attempt),
            ask=request.ask,
            job_epoch=job.epoch,
        )
        self._link.streams.ask(record.attempts[-1].hosts[0], question, came)
