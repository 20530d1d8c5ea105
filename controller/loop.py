"""The controller's loop without a socket: frames and moments go in, frames and effects come out.

Rule: everything between a frame and what is done about it stands here, and nothing of it waits, listens or
reads a clock of its own. A server gives it a socket, timers and threads (`server.py`); the simulation of
whole clusters drives the same loop with a clock of its own (`tests/simulation/headquarters.py`).

    a frame       decode, let it change the state, settle, seal: effects follow when they are durable
    a moment      the engine's alarm rings; executors look for what is late
    the disk      what became durable is carried out; what could not be written is taken back
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from cotenant.controller import store
from cotenant.controller.api import Code, Rates
from cotenant.controller.domain import ComputeRequest
from cotenant.controller.domain import events as ev
from cotenant.controller.executors import Executor
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import FromAgent, HostRefused, codec
from cotenant.controller.wire import clients as wire

WAITING_ROWS_MAX: Final = 20_000
"""With more rows on their way to the disk, no frame is read until the disk has caught up."""
ALARM_SPACING_S: Final = 0.01
FAILED_ALARMS_MAX: Final = 14
"""The pause before an alarm doubles with each that has failed, so often at most."""
TRACEBACKS_PER_SECOND: Final = 1 / 60
TRACEBACKS_BURST: Final = 20.0
"""Of each sender, in the log."""
INTERNAL: Final = "the controller failed on this request and goes on without it; its log says why"
TOO_MUCH: Final = "too much at once: wait a few seconds and try again"

log = logging.getLogger("cotenant.controller")


class ControllerEdges(Protocol):
    """What a loop asks of whatever runs it."""

    def send(self, address: bytes, frame: bytes) -> bool:
        """Sends a frame to a peer; False: the peer is gone, and nothing was queued."""

    def wake_at(self, at_s: float | None) -> None:
        """Calls `ring` at this time of the controller's clock and no other; None: not at all."""

    def pause_reading(self, paused: bool) -> None:
        """Reads no more frames for now, or again."""

    def start_computing(self, request: ComputeRequest) -> None:
        """Computes what was asked for, and answers with `computed`."""

    def take_note(self, decided: Sequence[store.Decided]) -> None:
        """Decisions have been made; they may not be durable yet."""

    def end(self, fatal: store.Fatal) -> None:
        """Ends without reading, writing or sending anything more."""


class AnswersClients(Protocol):
    """Answers the requests of people and programs (`api.RequestHandlers`)."""

    def affords(self, who: Identity, size: int) -> bool:
        """Whether a user may send so many bytes now."""

    def ask(self, address: bytes, who: Identity, request: wire.Request) -> None:
        """Answers a request, now or later."""

    def settle(self, decided: Sequence[store.Decided] = ()) -> None:
        """Looks whether an answer is due."""

    def rebuilt(self) -> None:
        """The state was read back from the journal."""

    def tick(self) -> None:
        """Looks after deadlines."""


class TalksToAgents(Executor, Protocol):
    """Talks to agents (`executors.agents.AgentExecutor`)."""

    def heard(self, address: bytes, who: Identity, message: FromAgent) -> bool:
        """Takes in a message of an agent; False: it is not one that this agent may send."""


class ControllerLoop:
    """The loop of one controller, between its journal and its peers."""

    def __init__(
        self,
        core: store.Core,
        agents: TalksToAgents,
        clients: AnswersClients,
        edges: ControllerEdges,
        *,
        executors: Sequence[Executor] = (),
        waiting_rows_max: int = WAITING_ROWS_MAX,
    ) -> None:
        """Creates a loop that has received nothing yet. `executors`: those beside the agents."""
        self.core = core
        self._agents, self._clients, self._edges = agents, clients, edges
        self._executors: tuple[Executor, ...] = (agents, *executors)
        self._waiting_rows_max = waiting_rows_max
        self._is_full = False
        self._is_ending = False
        self._rebuilds = 0
        self._alarm_s: float | None = None
        self._failed_alarms = 0
        self._log_rates = Rates(TRACEBACKS_PER_SECOND, TRACEBACKS_BURST)

    # --- Frames ------------------------------------------------------------------------------------

    def receive(self, address: bytes, who: Identity, is_client: bool, frame: bytes) -> None:
        """Takes in one frame of a peer, from bytes to effects. A frame that is no message is counted, and a
        client hears what is wrong with it."""
        if is_client and not self._clients.affords(who, len(frame)):
            self.core.counters["refused_requests"] += 1
            number = codec.request_in(frame)
            if number is not None:
                self._refuse(address, number, "refused", TOO_MUCH)
            return
        try:
            if is_client:
                self._ask(address, who, codec.decode(frame, wire.Request))
            else:
                message: FromAgent = codec.decode(frame, FromAgent)
                self.guard(partial(self._hear, address, who, message), whose=who.name)
        except codec.WrongVersion as wrong:
            self.core.counters["bad_messages"] += 1
            why = codec.refusal(wrong.theirs)
            no = (
                wire.Failure(request_id=0, code="version", message=why) if is_client else HostRefused(why=why)
            )
            self._edges.send(address, codec.encode(no, wrong.theirs))
        except codec.BadMessage:
            self.core.counters["bad_messages"] += 1
            number = codec.request_in(frame) if is_client else None
            if number is not None:
                self._refuse(address, number, "version", codec.UNKNOWN_REQUEST)

    def _ask(self, address: bytes, who: Identity, request: wire.Request) -> None:
        self.guard(
            lambda: self._clients.ask(address, who, request),
            lambda: self._refuse(address, request.request_id, "internal", INTERNAL),
            whose=who.name,
        )

    def _hear(self, address: bytes, who: Identity, message: FromAgent) -> None:
        if not self._agents.heard(address, who, message):
            self.core.counters["bad_messages"] += 1

    def _may_log(self, whose: str) -> bool:
        """Whether the log has room for one more traceback of this sender; all are counted."""
        return self._log_rates.allow(whose, self.core.clock.now_s(), 1)

    def _refuse(self, address: bytes, request_id: int, code: Code, message: str) -> None:
        frame = codec.encode(wire.Failure(request_id=request_id, code=code, message=message))
        self._edges.send(address, frame)

    # --- What happens ------------------------------------------------------------------------------

    def happen(self, event: ev.AnyEvent) -> None:
        """Lets an event happen that no frame has brought, and commits its consequences."""

        def work() -> None:
            self.core.happen(event)

        self.guard(work)

    def guard(
        self, work: Callable[[], None], otherwise: Callable[[], None] | None = None, *, whose: str = ""
    ) -> None:
        """Does the work and commits its consequences. An event that breaks the engine goes into quarantine,
        with its traceback.

        State changes only inside `core.happen`, which takes back what fails; so whatever else a message
        breaks, the controller goes on without it. `otherwise`: what is done in place of work that failed.
        `whose`: who has sent it; the log has a bounded number of tracebacks of each.
        """
        try:
            work()
            if not self.core.has_news and self.core.journal.is_settled:
                return  # A heartbeat, nearly always: there is nothing to pass on, to seal or to wake for.
            self._settle()
        except store.Fatal as fatal:
            self._end(fatal)
            return
        except store.Poisoned as poisoned:
            if self._may_log(whose):
                log.error("put aside (of %s): %s", whose or "the controller", poisoned, exc_info=poisoned)
        except store.Stuck:
            self.core.counters["stuck"] += 1
        except Exception:
            if self._may_log(whose):
                log.exception("a message of %s was dropped", whose or "the controller")
            self.core.counters["internal_errors"] += 1
            if otherwise is not None:
                otherwise()
        self._follow_rebuild()
        self.seal()
        self.set_alarm()
        if self.core.journal.waiting > self._waiting_rows_max:
            self._is_full = True
            self._edges.pause_reading(True)

    def _settle(self) -> None:
        """Passes what was just decided to those who count it or wait for it."""
        decided = self.core.take_decided()
        self._edges.take_note(decided)
        self._clients.settle(decided)

    def seal(self) -> None:
        """Ends a message: what follows from it is handed to the journal, and what needs none follows now."""
        store.let_follow(self.core.seal(), self._carry_out)

    def _follow_rebuild(self) -> None:
        """Resets those who keep something beside the state, once it was read back."""
        if self.core.rebuilds != self._rebuilds:
            self._rebuilds = self.core.rebuilds
            for executor in self._executors:
                executor.rebuilt()
            self._clients.rebuilt()

    def _carry_out(self, decided: store.Decided) -> None:
        """Carries out a decision, which is durable now."""
        for executor in self._executors:
            executor.carry_out(decided)
        for command in decided.commands:
            if isinstance(command, ComputeRequest):
                self._edges.start_computing(command)

    def take_computed(self, result: ev.Computed) -> None:
        """Takes in the answer to a computation, unless nobody waits for it any more."""
        if result.request_id in self.core.state.compute_requests:
            self.happen(result)

    # --- Moments -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called about twice a second: executors and clients look for what is late."""

        def look() -> None:
            for executor in self._executors:
                executor.tick()
            self._clients.tick()

        self.guard(look)

    def write_again(self) -> None:
        """Tries to write a journal that could not be written."""
        if not self.core.stuck:
            return
        try:
            is_written = self.core.try_again()
        except store.Fatal as fatal:
            self._end(fatal)
            return
        if is_written:
            log.warning("the journal can be written again")
            self._follow_rebuild()
            self.seal()
            self.set_alarm()

    def set_alarm(self) -> None:
        """Asks to be woken when the engine wants to be. Called after every message: mostly nothing has
        changed."""
        alarm_s = None if self.core.stuck or self._is_ending else self.core.state.engine.next_alarm_s
        if alarm_s != self._alarm_s:
            self._alarm_s = alarm_s
            earliest_s = self.core.clock.now_s() + ALARM_SPACING_S * 2**self._failed_alarms
            self._edges.wake_at(None if alarm_s is None else max(alarm_s, earliest_s))

    def ring(self) -> None:
        """The time has come that was asked for, or one before it."""
        self._alarm_s = None
        broken = self.core.counters["quarantined"]
        if self.core.ring():
            self.happen(ev.AlarmRang())
        failed = self.core.counters["quarantined"] > broken
        self._failed_alarms = min(self._failed_alarms + 1, FAILED_ALARMS_MAX) if failed else 0
        self.set_alarm()

    # --- The disk ----------------------------------------------------------------------------------

    def durable(self, effects: Sequence[store.Effect]) -> None:
        """Lets effects follow whose rows are on disk, and reads on once the disk has caught up."""
        store.let_follow(effects, self._carry_out)
        if self._is_full and self.core.journal.waiting <= self._waiting_rows_max // 2:
            self._is_full = False
            self._edges.pause_reading(False)

    def commit_failed(self, error: store.StorageError) -> None:
        """Takes back what could not be written; nothing new is accepted until it can be."""
        if not isinstance(error, store.LeaderReplaced):
            log.error("the journal cannot be written (%s): nothing new is accepted, jobs go on", error)
        try:
            instead = self.core.commit_failed(error)
        except store.Fatal as fatal:
            self._end(fatal)
            return
        self._follow_rebuild()
        store.let_follow(instead, self._carry_out)

    # --- The end -----------------------------------------------------------------------------------

    def rest(self) -> None:
        """Sets no more alarms, and reads no more frames, whatever the disk does."""
        self._is_ending, self._is_full = True, False
        self.set_alarm()
        self._edges.pause_reading(True)

    def _end(self, fatal: store.Fatal) -> None:
        log.critical("ending: %s", fatal)
        self._is_ending = True
        self._edges.end(fatal)
