"""The agent's loop without a socket or a disk of its own: events and moments go in, effects come out.

Rule: notes reach the disk before anything that follows from them leaves the process. While the disk refuses
them, the agent confirms, reports and starts nothing, but leases and heartbeats go on, so a full disk does not
end running jobs. The agent's process (`runtime.py`) and the simulation of whole clusters
(`tests/simulation/machine.py`) run this loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from cotenant.agent.daemon.core import edge
from cotenant.agent.daemon.core.notes import AnyNote
from cotenant.agent.daemon.core.state import AgentState
from cotenant.controller.wire import CommandAck, FromAgent, Report

UNWRITTEN_MAX: Final = 100_000
"""Notes that wait for a disk that refuses them; with more of them the agent ends."""


class BadState(Exception):
    """A mistake of ours while the state was changed: what the agent knows may be wrong, so it must end."""


class AgentEdges(Protocol):
    """What a loop asks of whatever runs it."""

    def now_s(self) -> float:
        """The time of this host's clock that no time zone moves."""

    def wake_at(self, at_s: float) -> None:
        """Lets `AgentTicked` happen at this time and no other."""

    def write(self, notes: Sequence[AnyNote]) -> None:
        """Brings notes to the disk.

        Raises:
            OSError: the disk refuses them; none of them counts.
        """

    def write_later(self) -> None:
        """Calls `write_again` in a moment."""

    def do(self, effect: edge.AnyAgentEffect) -> None:
        """Carries out an effect that is neither a note nor a message to the controller."""

    def send(self, message: FromAgent) -> None:
        """Sends a message to the controller, if there is a connection."""

    def note_handled(self, event: edge.AnyAgentEvent) -> None:
        """An event has been handled, with all its effects."""

    def halt(self, why: str) -> None:
        """Ends the agent; jobs live on."""


class AgentLoop:
    """The loop of one agent, between its state machine and its edges."""

    def __init__(self, state: AgentState, edges: AgentEdges, *, notes: str) -> None:
        """Creates a loop that has handled nothing yet. `notes`: where the notes are, for people."""
        self._state, self._edges, self._notes = state, edges, notes
        self._events: deque[edge.AnyAgentEvent] = deque()
        self._is_busy = False
        self.is_over = False
        """Its process is gone: nothing is done any more, whatever is under way."""
        self._is_halting = False
        """No more events are handled."""
        self.unwritten: list[AnyNote] = []
        """Notes that the disk has refused so far, the oldest first."""
        self._postponed: list[edge.AnyAgentEffect] = []
        """What must not happen before `unwritten` is on disk."""

    def take(self, event: edge.AnyAgentEvent) -> None:
        """Handles an event now, or right after the one that is being handled.

        Raises:
            BadState: that cannot be done; the next start knows what is on disk.
        """
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._events and not (self.is_over or self._is_halting):
                self._handle(self._events.popleft())
        finally:
            self._is_busy = False
        if not (self.is_over or self._is_halting):
            self._edges.wake_at(self._state.next_alarm_s)

    def _handle(self, happened: edge.AnyAgentEvent) -> None:
        try:
            self._perform(self._state.handle(happened, self._edges.now_s()))
            self._edges.note_handled(happened)
        except Exception as error:
            raise BadState(f"{type(happened).__name__} could not be handled: {error!r:.300}") from error

    def _perform(self, effects: Sequence[edge.AnyAgentEffect]) -> None:
        """Notes first; messages last, so that one flush serves all notes of the list."""
        self._write([effect.note for effect in effects if isinstance(effect, edge.Keep)])
        for effect in effects:
            if not isinstance(effect, edge.Keep | edge.Send) and not self.is_over:
                self._do(effect)
        for effect in effects:
            if isinstance(effect, edge.Send) and not self.is_over and not self._must_wait(effect.message):
                self._edges.send(effect.message)

    def _must_wait(self, message: FromAgent) -> bool:
        """Whether a message would confirm what is not on disk."""
        return bool(self.unwritten) and isinstance(message, Report | CommandAck)

    def _do(self, effect: edge.AnyAgentEffect) -> None:
        match effect:
            case edge.StartSupervisor(order=order) if self.unwritten:
                why = f"the disk of {order.host_id} takes no more notes of its agent"
                self.take(edge.StartFailed(job_id=order.job_id, attempt=order.attempt, why=why))
            case edge.RemoveAttempt() | edge.RemoveCheckpoints() if self.unwritten:
                self._postponed.append(effect)
            case edge.Halt(why=why):
                self._halt(why)
            case _:
                self._edges.do(effect)

    def _halt(self, why: str) -> None:
        self._is_halting = True
        self._edges.halt(why)

    def leave(self) -> None:
        """Handles no more events."""
        self._is_halting = True

    # --- The disk ----------------------------------------------------------------------------------

    def _write(self, notes: list[AnyNote]) -> None:
        """Brings notes to the disk; those that it refuses wait."""
        if notes and self.unwritten:
            self.unwritten += notes
        elif notes:
            try:
                self._edges.write(notes)
            except OSError as error:
                self._say(f"cannot write {self._notes}: {error.strerror}; trying again every second")
                self.unwritten = notes
                self._edges.write_later()
        if len(self.unwritten) > UNWRITTEN_MAX:
            self._halt(f"{self._notes} could not be written for too long: free space, then start again")

    def write_again(self) -> None:
        """Brings the notes that wait to the disk, and then does what was postponed for their sake."""
        try:
            self._edges.write(self.unwritten)
        except OSError:
            self._edges.write_later()
            return
        self._say(f"{self._notes} can be written again")
        self.unwritten = []
        postponed, self._postponed = self._postponed, []
        for effect in postponed:
            self._do(effect)

    def _say(self, text: str) -> None:
        self._edges.do(edge.Say(text=text))
