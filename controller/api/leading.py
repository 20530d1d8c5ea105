"""Answers who leads and who follows, and hands over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from cotenant.controller import store
from cotenant.controller.api.permissions import must_be_admin
from cotenant.controller.api.submissions import Denied
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import utc

LOOK_S: Final = 1.0
NOBODY: Final = "start a second controller with `cotenant controller --standby`, and wait until it follows"


class LeadershipNews(NamedTuple):
    """Who leads and who follows, as a shared journal said a moment ago."""

    leader: store.Leadership
    led_s: float
    """For how long it had led."""
    following: tuple[store.FollowingStandby, ...]
    seq: int
    """The last durable entry at that moment."""
    at_s: float
    """The moment, by the monotonic clock."""

    def standbys(self) -> tuple[wire.StandbyView, ...]:
        """How far each standby is behind."""
        ago_s = time.monotonic() - self.at_s
        return tuple(
            wire.StandbyView(
                endpoint=each.endpoint,
                host=each.host,
                behind_entries=max(0, self.seq - each.seq),
                behind_s=each.seen_s + ago_s,
            )
            for each in self.following
        )


class LeadershipWatch(threading.Thread):
    """Asks a shared journal once a second who follows, so that the loop never waits for that. While the
    database is lost its last answer stays, and grows old."""

    def __init__(self, core: store.Core, look_s: float = LOOK_S) -> None:
        """Asks once. Raises StorageError."""
        super().__init__(name="leadership", daemon=True)
        self._core = core
        self._look_s = look_s
        self._stopped = threading.Event()
        is_shared = core.journal.database.is_shared
        self.news: LeadershipNews | None = self._look(core.journal) if is_shared else None
        """None: the journal is a file."""

    def run(self) -> None:
        journal: store.JournalReader | None = None
        database = self._core.journal.database
        while self.news is not None and not self._stopped.wait(self._look_s):
            with suppress(store.StorageError, store.JournalError):
                journal = journal or store.JournalReader(database.open_reading(), database.place)
                self.news = self._look(journal)
        if journal is not None:
            journal.close()

    def _look(self, journal: store.JournalReader) -> LeadershipNews:
        seq, at_s, leader = self._core.durable_seq, time.monotonic(), store.read_leadership(journal.reading)
        led_s = max(0.0, self._core.clock.wall() - leader.since_s)
        return LeadershipNews(leader, led_s, tuple(store.read_following(journal.reading)), seq, at_s)

    def close(self) -> None:
        """Ends the thread and waits for it."""
        self._stopped.set()
        self.join()


class LeadershipRequests:
    """The requests about the controllers, as the leader answers them."""

    def __init__(
        self, core: store.Core, watch: LeadershipWatch, endpoint: str, hand_over: Callable[[], None]
    ) -> None:
        """`hand_over` lets this controller end in order, for another to lead."""
        self._core = core
        self._watch = watch
        self._endpoint = endpoint
        self._hand_over = hand_over

    def controllers(
        self, request_id: int, request: wire.GetControllers, who: Identity
    ) -> wire.ControllersView:
        """Who leads and who follows."""
        core = self._core
        news = self._watch.news
        found = news.leader if news else None
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
            standbys=news.standbys() if news else (),
            problem=core.stuck or None,
        )

    def hand_over(self, request_id: int, request: wire.HandOver, who: Identity) -> wire.Done:
        """Lets a standby lead. Raises Denied: none is near enough."""
        must_be_admin(who, "hand the cluster over")
        news = self._watch.news
        standbys = news.standbys() if news else ()
        ready = [each for each in standbys if each.is_near]
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
