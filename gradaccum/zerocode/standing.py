"""Whether the batches of a script may be split, with whoever wants to hear of it.

Rule: a verdict may only get worse.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

import torch

from cotenant.gradaccum.protocol import tell_failed
from cotenant.gradaccum.schedule import PROGRESS, Schedule

log = logging.getLogger("cotenant.gradaccum")

NOTHING_SEEN: Final = "no forward pass of a module with parameters was seen before the first optimizer step"
NOT_ASKED: Final = "--accumulate never, or --share never"
ONE_ROW: Final = "its batches have a single row"


class Observer:
    """Told about the script as a whole: `decided` and `withdrawn` at most once, `stepped` once per step."""

    def decide(self, reason: str | None) -> None:
        """Before the first step is counted: batches can be split (None), or why not."""

    def withdrawn(self, reason: str) -> None:
        """After `decided(None)`: from now on batches stay whole."""

    def note_step(self, optimizer: Any) -> None:
        """The script's main optimizer has done a step."""


class AccumulationStanding:
    """The verdict about one process. `leave` takes the patches out."""

    def __init__(self, leave: Callable[[], None], *, is_quiet: bool = False) -> None:
        self.observers: list[Observer] = []
        self.refused: str | None = None
        self.is_quiet = is_quiet
        """Nobody asked for any of it: only the supervisor hears why batches stay whole."""
        self.by_framework = False
        """The framework's own accumulation was set instead: batches are whole as far as we see them."""
        self.good: WeakSet[torch.nn.Module] = WeakSet()
        """Modules that passed the check."""
        self.postponed = False
        """A module could not be checked yet: its batch had one row."""
        self._leave = leave
        self._main: int | None = None
        self._decided = False

    def steps_now(self) -> int:
        """s for the forward pass that comes next."""
        if self.refused is not None or self.by_framework:
            return 1
        return PROGRESS.steps_now()

    def refuse(self, reason: str) -> None:
        """Leave batches whole from now on."""
        if self.refused is not None:
            return
        self.refused = reason
        PROGRESS.schedule = Schedule()
        PROGRESS.last_steps = 1
        self._leave()
        self.note(f"this script's batches stay whole: {reason}")
        if self._decided:
            tell_failed(reason)
            for observer in self.observers:
                observer.withdrawn(reason)

    def note(self, text: str) -> None:
        """Something worth a line that changes nothing."""
        if not self.is_quiet and os.environ.get("RANK", "0") == "0":
            log.warning("cotenant: %s", text)

    def optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        """After every step of every optimizer; the first one to step is the one that counts."""
        if self._main is None:
            self._main = id(optimizer)
        if id(optimizer) != self._main:
            return
        if not self._decided:
            self._decide()
        if not (PROGRESS.counted_for_us or PROGRESS.explicit):
            PROGRESS.completed += 1
        for observer in self.observers:
            observer.note_step(optimizer)

    def _decide(self) -> None:
        if self.refused is None and not self.good and not (self.by_framework or PROGRESS.explicit):
            self.refuse(ONE_ROW if self.postponed else NOTHING_SEEN)
        self._decided = True
        for observer in self.observers:
            observer.decide(self.refused)
