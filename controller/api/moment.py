"""The moment at which something is shown, by the journal's clock and by the wall's."""

from __future__ import annotations

from typing import NamedTuple

from cotenant.controller.wire import utc


class Now(NamedTuple):
    """Now, by both clocks."""

    now_s: float
    """Seconds since the journal began."""
    wall_s: float

    def utc(self, at_s: float) -> str:
        """A time of the journal, as people and programs read it."""
        return utc(self.wall_s - self.now_s + at_s)

    def utc_if(self, at_s: float | None) -> str | None:
        return None if at_s is None else self.utc(at_s)

    def journal_s(self, unix_s: float) -> float:
        """The time of the journal at a time of the wall clock, 0 at the least."""
        return max(0.0, unix_s - self.wall_s + self.now_s)

    @property
    def at(self) -> str:
        return utc(self.wall_s)
