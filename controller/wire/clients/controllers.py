"""Questions about the controllers themselves: which leads, which follow, and the hand-over between them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cotenant.controller.wire.clients.base import Done, Question, Reply
from cotenant.controller.wire.times import Utc

BEHIND_ENTRIES_MAX: Final = 1_000
BEHIND_S_MAX: Final = 5.0
"""A standby that is further behind would take longer to lead than a hand-over may take."""


class GetControllers(Question["ControllersView"], frozen=True, kw_only=True, tag="controllers"):
    """Asks which controller leads and who follows; a standby answers it as well."""


class HandOver(Question[Done], frozen=True, kw_only=True, tag="hand-over"):
    """Ask the leader to let a standby lead (only an admin). It follows from then on."""


class StandbyView(msgspec.Struct, frozen=True, kw_only=True):
    """A controller that follows."""

    endpoint: str
    host: str
    behind_entries: int
    """Entries of the journal that it had not taken in."""
    behind_s: float
    """For how long it has not said that it had taken in everything, in seconds."""

    @property
    def is_near(self) -> bool:
        """Whether it could lead within seconds."""
        return self.behind_entries <= BEHIND_ENTRIES_MAX and self.behind_s <= BEHIND_S_MAX


class ControllersView(Reply, frozen=True, kw_only=True, tag="controllers-view"):
    """Who leads and who follows, as the controller sees it that was asked."""

    schema: Literal["cotenant.controllers/1"] = "cotenant.controllers/1"
    endpoint: str
    """Of the one that was asked."""
    role: Literal["leader", "standby"]
    journal: str
    entries: int
    """As far as the one that was asked has come."""
    leader: str | None
    """Its endpoint; None: nobody has led yet."""
    leader_host: str | None
    leads_since: Utc | None
    why: str | None
    """Why it took over from the one before."""
    term: int
    """How many have led before and with it; 0 where the journal is a file."""
    standbys: tuple[StandbyView, ...]
    problem: str | None = None
    """Why the one that was asked cannot follow, or cannot write, at the moment."""


ControllersRequest = GetControllers | HandOver
