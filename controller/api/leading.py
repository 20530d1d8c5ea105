"""Answers who leads and who follows, and hands over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.controller.api.permissions import must_be_admin
from cotenant.controller.api.submissions import Denied
from cotenant.controller.store import Core, read_following, read_leadership
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import utc

BEHIND_ENTRIES_MAX: Final = 1_000
BEHIND_S_MAX: Final = 5.0
"""A standby that is further behind would take longer to lead than a hand-over may take."""
NOBODY: Final = "start a second controller with `cotenant controller --standby`, and wait until it follows"


class LeadershipRequests:
    """The requests about the controllers, as the leader answers them."""

    def __init__(self, core: Core, endpoint: str, hand_over: Callable[[], None]) -> None:
        """`hand_over` lets this controller end in order, for another to lead."""
        self._core = core
        self._endpoint = endpoint
        self._hand_over = hand_over

    def controllers(
        self, request_id: int, request: wire.GetControllers, who: Identity
    ) -> wire.ControllersView:
        """Who leads and who follows."""
        core = self._core
        is_shared = core.journal.database.is_shared
        found = read_leadership(core.journal.reading) if is_shared else None
        return wire.ControllersView(
            request_id=request_id,
            endpoint=self._endpoint,
            role="leader",
            journal=core.journal.place,
            entries=core.durable_seq,
            leader=found.endpoint if found else self._endpoint,
            leader_host=found.host if found else None,
            leads_since=utc(found.since_s if found else core.began_wall_s),
            why=found.why if found else None,
            term=found.term if found else 0,
            standbys=self._standbys(),
            problem=core.stuck or None,
        )

    def _standbys(self) -> tuple[wire.StandbyView, ...]:
        if not self._core.journal.database.is_shared:
            return ()
        return tuple(
            wire.StandbyView(
                endpoint=each.endpoint,
                host=each.host,
                behind_entries=max(0, self._core.durable_seq - each.seq),
                behind_s=each.seen_s,
            )
            for each in read_following(self._core.journal.reading)
        )

    def hand_over(self, request_id: int, request: wire.HandOver, who: Identity) -> wire.Done:
        """Lets a standby lead. Raises Denied: none is near enough."""
        must_be_admin(who, "hand the cluster over")
        standbys = self._standbys()
        ready = [
            each
            for each in standbys
            if each.behind_entries <= BEHIND_ENTRIES_MAX and each.behind_s <= BEHIND_S_MAX
        ]
        if not ready:
            far = "; ".join(
                f"{each.endpoint} is {each.behind_entries} entries and {each.behind_s:.0f} s behind"
                for each in standbys
            )
            raise Denied("refused", f"nobody can take over{': ' if far else ''}{far}", NOBODY)
        self._core.audit(who, "hand-over", ready[0].endpoint)
        self._core.run_after_commit(self._hand_over)
        return wire.Done(
            request_id=request_id, lines=(f"{self._endpoint} hands over to {ready[0].endpoint}",)
        )
