"""What is on its way to agents: commands, sent again until seen and dropped when a later one makes them
pointless; and questions about what stays on its host, logs and streams, with the answers back.

Rule: pure. ZeroMQ may lose a message whenever a connection breaks, so a command stays here until its host
says that it is on its disk. Repeats are harmless: agents obey a command once.

Rule: one bounded piece per question, so a slow reader slows no other. Every question is answered
once: with data, or with what is missing and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from cotenant.controller import domain
from cotenant.controller.store import Clock
from cotenant.controller.wire import AskStream, LogReply, ReadLog, StreamReply, StreamTold, ToAgent

REPEAT_FIRST_S: Final = 1.0
REPEAT_MAX_S: Final = 5.0
REPEAT_GROWTH: Final = 1.5
PENDING_MAX: Final = 4096
"""Per host; one that leaves so many unacknowledged has to join again."""


class Pending(msgspec.Struct, kw_only=True):
    command: domain.AgentCommand
    due_s: float
    wait_s: float = REPEAT_FIRST_S
    sent: int = 0


class Overflow(Exception):
    """A host has too many commands open."""


class Delivery:
    """What is open, by host, in order."""

    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self._open: dict[domain.HostId, dict[domain.CommandId, Pending]] = {}
        self._pending_max = pending_max

    def put(self, command: domain.AgentCommand, now_s: float) -> None:
        """Opens a command that is due at once.

        Raises:
            Overflow: the host has as many open as it may have.
        """
        mine = self._open.setdefault(command.host_id, {})
        for command_id in [i for i, p in mine.items() if supersedes(command, p.command)]:
            del mine[command_id]
        if len(mine) >= self._pending_max:
            raise Overflow(command.host_id)
        mine[command.command_id] = Pending(command=command, due_s=now_s)

    def note_seen(self, host_id: domain.HostId, command_id: domain.CommandId) -> None:
        mine = self._open.get(host_id, {})
        mine.pop(command_id, None)
        if not mine:
            self._open.pop(host_id, None)

    def clear(self, host_id: domain.HostId) -> None:
        """The host joined anew (the engine sends what is still wanted) or is lost."""
        self._open.pop(host_id, None)

    def hosts(self) -> list[domain.HostId]:
        """Hosts with open commands."""
        return list(self._open)

    def due(self, now_s: float, host_id: domain.HostId) -> Iterator[tuple[domain.AgentCommand, bool]]:
        """The host's commands to send now and whether each is a repeat; the next time is set."""
        for pending in self._open.get(host_id, {}).values():
            if pending.due_s <= now_s:
                pending.due_s = now_s + pending.wait_s
                pending.wait_s = min(REPEAT_MAX_S, pending.wait_s * REPEAT_GROWTH)
                pending.sent += 1
                yield pending.command, pending.sent > 1

    def __len__(self) -> int:
        return sum(len(mine) for mine in self._open.values())


def supersedes(later: domain.AgentCommand, earlier: domain.AgentCommand) -> bool:
    """Whether the earlier command needs not arrive any more."""
    if isinstance(later, domain.TrustDevices) or isinstance(earlier, domain.TrustDevices):
        return isinstance(later, domain.TrustDevices) and isinstance(earlier, domain.TrustDevices)
    if later.job_id != earlier.job_id or later.job_epoch != earlier.job_epoch:
        return False
    if isinstance(later, domain.ForgetJob):  # But what still runs has to be stopped all the same.
        return not isinstance(earlier, domain.StopAttempt)
    if not isinstance(later, domain.StopAttempt) or isinstance(earlier, domain.ForgetJob):
        return False
    return earlier.attempt <= later.attempt


OPEN_MAX: Final = 1_000
PATIENCE_S: Final = 10.0
"""How long an agent may take beyond the time it was asked to wait."""

_Asked = TypeVar("_Asked", ReadLog, AskStream)
_Told = TypeVar("_Told", LogReply, StreamReply)


class HostQuestions(Generic[_Asked, _Told]):
    """Questions of one kind that agents have not answered yet."""

    def __init__(
        self,
        clock: Clock,
        say: Callable[[domain.HostId, ToAgent], bool],
        nothing: Callable[[_Asked, str], _Told],
        open_max: int = OPEN_MAX,
    ) -> None:
        """Starts without any. `nothing`: the answer in place of the host's, with the reason."""
        self._clock = clock
        self._say = say
        self._nothing: Callable[[_Asked, str], _Told] = nothing
        self._open_max = open_max
        self._open: dict[int, tuple[domain.HostId, _Asked, Callable[[_Told], None], float]] = {}
        self._count = 0

    def ask(self, host_id: domain.HostId, question: _Asked, answer: Callable[[_Told], None]) -> None:
        """`answer` is called once, now or later. The question gets its number here."""
        if len(self._open) >= self._open_max:
            answer(self._nothing(question, "too many questions of this kind are open at once"))
            return
        self._count += 1
        numbered = msgspec.structs.replace(question, request=self._count)
        if not self._say(host_id, numbered):
            answer(self._nothing(question, f"host {host_id} is not connected"))
            return
        deadline_s = self._clock.now_s() + question.wait_s + PATIENCE_S
        self._open[self._count] = (host_id, numbered, answer, deadline_s)

    def came(self, host_id: domain.HostId, reply: _Told) -> None:
        """Passes an answer on to whoever asked; an answer that is not waited for, or that is from another
        host, is dropped."""
        asked = self._open.get(reply.request)
        if asked is not None and asked[0] == host_id:
            del self._open[reply.request]
            asked[2](reply)

    def repeat(self, host_id: domain.HostId) -> None:
        """Asks again: the host has a new connection, and what was on the old one may be lost."""
        for asked_host, question, *_ in self._open.values():
            if asked_host == host_id:
                self._say(host_id, question)

    def tick(self, now_s: float) -> None:
        overdue = [request for request, asked in self._open.items() if asked[3] < now_s]
        for request in overdue:
            host_id, question, answer, _ = self._open.pop(request)
            answer(self._nothing(question, f"host {host_id} does not answer"))


def no_log(question: ReadLog, why: str) -> LogReply:
    return LogReply(request=0, data=b"", next_offset=question.offset, at_end=True, closed=False, missing=why)


def no_stream(question: AskStream, why: str) -> StreamReply:
    return StreamReply(request=0, told=StreamTold(state="away", why=why))
