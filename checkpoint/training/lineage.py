"""Where the state in memory comes from: which checkpoint, with what differences, with which s from when on.

Rule: exact is lost for good with the first difference; the note says with which.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cotenant.checkpoint.disk.layout import Manifest
from cotenant.checkpoint.talk.windows import History, recorded

log = logging.getLogger("cotenant.checkpoint")


@dataclass(frozen=True)
class Resumed:
    """Where this attempt started from. Exact: what follows equals an uninterrupted run, bit for bit."""

    name: str
    step: int
    exact: bool
    note: str


@dataclass
class Lineage:
    """Written into every manifest."""

    resumed: Resumed | None = None
    exact: bool = True
    notes: list[str] = field(default_factory=list)
    history: list[tuple[int, int]] = field(default_factory=list)
    """(from step, s)."""

    def used(self, steps: int, completed: int) -> None:
        """The step after `completed` ones used `steps` accumulation steps."""
        if not self.history or self.history[-1][1] != steps:
            self.history.append((completed, steps))

    def take_over(self, name: str, manifest: Manifest, differences: Iterable[str]) -> Resumed:
        """This attempt goes on from a checkpoint."""
        note = "; ".join(differences)
        self.history = list(recorded(manifest.history, manifest.step)[0])
        self.exact = manifest.exact and not note
        self.notes = [manifest.note] if manifest.note else []
        if note:
            self.notes.append(f"resumed from {name} with differences: {note}")
        self.resumed = Resumed(name=name, step=manifest.step, exact=not note, note=note)
        return self.resumed

    def differs(self, note: str) -> None:
        """Something turned out not to be as it was, after the resume."""
        if self.resumed is None:
            return
        self.exact = False
        self.notes.append(f"resumed from {self.resumed.name}: {note}")
        joined = "; ".join(filter(None, [self.resumed.note, note]))
        self.resumed = replace(self.resumed, exact=False, note=joined)
        log.warning("the resume from %s is equivalent, not exact: %s", self.resumed.name, note)

    def manifest_fields(self, ahead: History = ()) -> dict[str, Any]:
        """`ahead`: what is agreed on for later steps, so that a resumed run repeats it."""
        history = (*self.history, *ahead)
        return {"history": history, "exact": self.exact, "note": "; ".join(self.notes)}
