"""Whether the batches of a script may be split, with whoever wants to hear of it.

Rule: a verdict may only get worse. As long as nobody has ordered a split, "may be split" says that nothing is
known against it: the check comes when a split is about to begin.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from cotenant.checkpoint import guard, late_log, unseen
from cotenant.checkpoint.progress.main_optimizer import MainOptimizer
from cotenant.gradaccum import exactness, schedule

log = late_log.LateLog("cotenant.gradaccum")

NOT_ASKED: Final = "--accumulate never, or --share never"


class Observer:
    """Told about the script as a whole: `decided` and `withdrawn` at most once, `stepped` once per step."""

    def decide(self, reason: str | None) -> None:
        """Before the first step is counted: batches can be split (None), or why not."""

    def withdrawn(self, reason: str) -> None:
        """After `decided(None)`: from now on batches stay whole."""

    def note_step(self, optimizer: Any) -> None:
        """The script's main optimizer has done a step."""


class AccumulationStanding:
    """The verdict about one process. `objection`: what speaks against a split, after the first step."""

    def __init__(self, objection: Callable[[], str | None], *, is_quiet: bool = False) -> None:
        self.observers: list[Observer] = []
        self.refused: str | None = None
        self.is_quiet = is_quiet
        """Nobody asked for any of it: only the supervisor hears why batches stay whole."""
        self.steps_saved: int | None = None
        """The s with which a checkpoint was saved that this attempt goes on from."""
        self.by_framework = False
        """The framework's own accumulation was set instead: batches are whole as far as we see them."""
        self.when_refused: list[Callable[[], None]] = []
        self.objection = objection
        self._main = MainOptimizer()
        self._decided = False

    def steps_now(self) -> int:
        """s for the forward pass that comes next."""
        if self.refused is not None or self.by_framework or schedule.PROGRESS.explicit:
            return 1
        return schedule.PROGRESS.steps_now()

    def refuse(self, reason: str) -> None:
        """Leave batches whole from now on. Where a split was ordered, memory was planned for its parts: the
        attempt ends, and the job goes on whole."""
        if self.refused is not None:
            return
        is_ordered = self.steps_now() > 1
        self.refused = reason
        for leave in self.when_refused:
            leave()
        if is_ordered and os.environ.get(guard.ENV_SOCKET):
            exactness.end_attempt(reason)
        schedule.PROGRESS.schedule = schedule.Schedule()
        schedule.PROGRESS.last_steps = 1
        self.note(f"this script's batches stay whole: {reason}")
        if self._decided:
            exactness.tell_failed(reason)
            for observer in self.observers:
                observer.withdrawn(reason)

    def note(self, text: str) -> None:
        """Something worth a line that changes nothing."""
        if not self.is_quiet and os.environ.get("RANK", "0") == "0":
            log.warning("cotenant: %s", text)

    def note_step(self, optimizer: Any) -> None:
        """After every step of every optimizer."""
        if not self._main.counts(optimizer):
            return
        if not self._decided:
            with unseen.Unseen():
                self._decide()
        if not (schedule.PROGRESS.counted_for_us or schedule.PROGRESS.explicit):
            schedule.PROGRESS.completed += 1
        for observer in self.observers:
            observer.note_step(optimizer)

    def _decide(self) -> None:
        reason = None
        if self.refused is None and not (self.by_framework or schedule.PROGRESS.explicit):
            reason = guard.SPLITTING.run(self.objection)
        if reason is not None:
            self.refuse(reason)
        self._decided = True
        for observer in self.observers:
            observer.decide(self.refused)
