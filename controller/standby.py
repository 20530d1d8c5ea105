"""A controller that does not lead: it follows the journal, says who leads, and takes over.

Rule: it answers every question but the one about itself with the leader's endpoint, and every agent as well.
It takes no decision; what it folds is what the leader has decided.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from typing import Final

from cotenant.controller.engine import EngineConfig
from cotenant.controller.policies.registry import make_or_stand_in
from cotenant.controller.redirecting import Redirector
from cotenant.controller.router import Router
from cotenant.controller.store import FollowingThread, JournalError, PostgresDatabase, TakenOver
from cotenant.controller.system.keys import Identity, KeyProblem
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import utc

KEYS_EVERY_S: Final = 0.5

log = logging.getLogger("cotenant.controller")


class Standby:
    """One controller for as long as it follows. It is made inside a running event loop."""

    def __init__(
        self,
        database: PostgresDatabase,
        router: Router,
        config: EngineConfig,
        lease_s: float,
        *,
        leave_to_others_s: float = 0.0,
    ) -> None:
        """Begins to follow and to answer. `leave_to_others_s`: see `FollowingThread`.

        Raises:
            JournalError: there is no journal, or nobody answers.
        """
        self._database = database
        self._router = router
        self._asyncio = asyncio.get_running_loop()
        self._ended: asyncio.Future[TakenOver | JournalError | None] = self._asyncio.create_future()
        self.counters: Counter[str] = Counter()
        self._following = FollowingThread(
            database, make_or_stand_in, config, lease_s, self._note_end, leave_to_others_s=leave_to_others_s
        )
        self._redirector = Redirector(router.send, self.counters, self._why, self._view)
        router.hand_to(self._receive, self.counters)
        router.pause(False)
        self._following.start()

    async def run(self) -> TakenOver | None:
        """Follows until it leads; None: it was stopped.

        Raises:
            JournalError: the journal is damaged.
        """
        keys = self._asyncio.create_task(self._refresh_keys())
        try:
            found = await self._ended
        finally:
            keys.cancel()
            self._router.pause(True)
            await asyncio.to_thread(self._following.stop)
        if isinstance(found, JournalError):
            raise found
        return found

    def stop(self) -> None:
        """Ends soon."""
        if not self._ended.done():
            self._ended.set_result(None)

    def _note_end(self, found: TakenOver | JournalError) -> None:
        self._asyncio.call_soon_threadsafe(self._end, found)

    def _end(self, found: TakenOver | JournalError) -> None:
        if not self._ended.done():
            self._ended.set_result(found)
        elif isinstance(found, TakenOver):
            found.writing.close()

    async def _refresh_keys(self) -> None:
        while True:
            await asyncio.sleep(KEYS_EVERY_S)
            try:
                self._router.refresh_users()
            except KeyProblem as problem:
                log.error("keys are as before: %s", problem)

    # --- Answers -----------------------------------------------------------------------------------

    def _receive(self, address: bytes, who: Identity, is_client: bool, frame: bytes) -> None:
        self._redirector.answer(address, is_client, frame)

    @property
    def _leader(self) -> str:
        leader = self._following.news.leader
        return leader.endpoint if leader and leader.endpoint != self._database.endpoint else ""

    def _why(self) -> tuple[str, str]:
        where = f"the leader is at {self._leader}" if self._leader else "nobody leads at the moment"
        return f"this is the standby; {where}", self._leader

    def _view(self, request_id: int) -> wire.ControllersView:
        news = self._following.news
        behind_s = time.monotonic() - news.caught_up_s
        own = wire.StandbyView(
            endpoint=self._database.endpoint,
            host=socket.gethostname(),
            behind_entries=news.behind_entries,
            behind_s=behind_s,
        )
        leader = news.leader if news.leader and news.leader.term else None
        return wire.ControllersView(
            request_id=request_id,
            endpoint=self._database.endpoint,
            role="standby",
            journal=self._database.place,
            entries=news.seq,
            leader=leader.endpoint if leader else None,
            leader_host=leader.host if leader else None,
            leads_since=utc(leader.since_s) if leader else None,
            why=leader.why if leader else None,
            term=leader.term if leader else 0,
            standbys=(own,),
            problem=news.problem or None,
        )
