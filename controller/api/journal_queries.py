"""Answers about a state in which nothing happens any more: no agent is heard, and no answer waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cotenant.controller.api.etas import EtaBoard
from cotenant.controller.api.handlers import answers_of
from cotenant.controller.api.logs import AsksHost, LogRequests
from cotenant.controller.api.past import AccountingRequests, TimelineRequests
from cotenant.controller.api.permissions import must_own, one_job
from cotenant.controller.api.queries import Queries
from cotenant.controller.executors.agents import AgentNews
from cotenant.controller.store import ReadingCore
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire


class JournalQueries:
    """The controller's own queries that change nothing."""

    def __init__(self, core: ReadingCore, ask_host: AsksHost) -> None:
        self._core = core
        queries = Queries(core, AgentNews(), EtaBoard(core))
        self._logs = LogRequests(core, ask_host)
        self._answers = answers_of(
            queries, AccountingRequests(core, queries), TimelineRequests(core, queries)
        )

    def ask(self, body: wire.Question[Any], who: Identity, say: Callable[[Any], None]) -> None:
        """Calls `say` with the answer, unless this is no question that is answered here. Raises Denied."""
        if isinstance(body, wire.ReadJobLog):
            must_own(who, one_job(self._core, body.job_id).job, "read the log of")
            self._logs.read(b"", 0, msgspec.structs.replace(body, wait_s=0.0), say)
        elif type(body) in self._answers:
            say(self._answers[type(body)](0, body, who))
