"""This rank's side of the two-phase agreement on a step to stop or to save at.

Rule: no sockets, no clocks, no threads here. The caller holds one lock around every call. A rank that
has said "ok" to step N does not pass N before it knows the decision (or has given up, and says so).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cotenant.checkpoint.talk.protocol import PHASE_COMMIT, PHASE_PROPOSE, STOP_AT, SupervisorDatagram

OPEN_MAX: Final = 8
"""More proposals than this at once are refused: a supervisor needs one of each kind."""

EPOCH_BATCHES_MIN: Final = 8
"""In shorter epochs any step may be agreed on, unless the session says otherwise."""

_NEVER: Final = 2**62


class StepVerdict(Enum):
    """What to do at a step boundary."""

    GO = "go"
    WAIT = "wait"
    SAVE = "save"
    STOP = "stop"
    FINISH = "finish"
    """Save, and end the loop as if all steps were done; where that cannot be, a stop."""


@dataclass(frozen=True)
class Confirm:
    """The answer to one proposal; `step` is the rank's own."""

    proposal: int
    step: int
    ok: bool


@dataclass
class _Promise:
    kind: str
    proposal: int
    step: int
    committed: bool = False
    finish: bool = False


@dataclass
class Agreement:
    """Counts completed steps and knows which step needs attention next."""

    completed: int = 0
    can_save: bool = True
    late: int = 0
    epoch: tuple[int, int] | None = None
    """(the step that ends this epoch, steps in an epoch). A resume at the end of an epoch would run what the
    script does there without a batch before it (no `loss` to print): such a step is refused for a later one.
    """
    _promises: dict[tuple[str, int], _Promise] = field(default_factory=dict)
    _obeyed: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=2 * OPEN_MAX))
    attention_step: int = _NEVER
    """Nothing is asked of this rank before it."""

    def receive(self, order: SupervisorDatagram) -> Confirm | None:
        """Take in one order; obeying it twice changes nothing."""
        if (order.kind, order.proposal) in self._obeyed:
            return None
        if order.phase == PHASE_PROPOSE:
            return self._answer_proposal(order)
        if order.phase == PHASE_COMMIT:
            return self._commit_promise(order)
        promise = self._promises.get((order.kind, order.proposal))
        if promise is not None and not promise.committed:  # a commit is final
            self._forget(promise)
        return None

    def arrive(self, step: int) -> StepVerdict:
        """`step` optimizer steps are complete. WAIT means: ask again when an order came or time is up."""
        self.completed = step
        if step < self.attention_step:
            return StepVerdict.GO
        due = [promise for promise in self._promises.values() if promise.step <= step]
        stops = any(promise.committed and promise.kind == STOP_AT for promise in due)
        if not stops and not all(promise.committed for promise in due):
            return StepVerdict.WAIT
        for promise in due:
            self._forget(promise)
            if promise.committed:
                self._obeyed.append((promise.kind, promise.proposal))
        if stops:
            finish = all(promise.finish for promise in due if promise.kind == STOP_AT)
            return StepVerdict.FINISH if finish else StepVerdict.STOP
        return StepVerdict.SAVE if due else StepVerdict.GO

    def give_up(self) -> list[Confirm]:
        """No decision came in time: take back what was promised for this step, and tell the supervisor."""
        overdue = [p for p in self._promises.values() if p.step <= self.completed and not p.committed]
        for promise in overdue:
            self._forget(promise)
        return [self._answer(promise.proposal, ok=False) for promise in overdue]

    def _answer_proposal(self, order: SupervisorDatagram) -> Confirm:
        known = self._promises.get((order.kind, order.proposal))
        if known is not None:
            return self._answer(order.proposal, ok=known.step == order.step)
        full = len(self._promises) >= OPEN_MAX
        possible = self.can_save and not self._ends_epoch(order.step)
        if not possible or full or order.step <= self.completed:
            return self._answer(order.proposal, ok=False)
        self._remember(_Promise(order.kind, order.proposal, order.step, finish=order.finish))
        return self._answer(order.proposal, ok=True)

    def _commit_promise(self, order: SupervisorDatagram) -> Confirm | None:
        promise = self._promises.get((order.kind, order.proposal))
        if promise is not None:
            promise.committed = True
            return None
        # We had given up (or never promised) and went on: a stop at that step would split the gang.
        self.late += 1
        return self._answer(order.proposal, ok=False)

    def _answer(self, proposal: int, *, ok: bool) -> Confirm:
        return Confirm(proposal=proposal, step=self.completed, ok=ok)

    def _ends_epoch(self, step: int) -> bool:
        if self.epoch is None:
            return False
        end, length = self.epoch
        return length >= EPOCH_BATCHES_MIN and step >= end and (step - end) % length == 0

    def _remember(self, promise: _Promise) -> None:
        self._promises[promise.kind, promise.proposal] = promise
        self.attention_step = min(self.attention_step, promise.step)

    def _forget(self, promise: _Promise) -> None:
        del self._promises[promise.kind, promise.proposal]
        self.attention_step = min((each.step for each in self._promises.values()), default=_NEVER)
