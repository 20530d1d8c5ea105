"""Connections to the controller, what was answered a moment ago, and looks at what runs while no page is
open: the plots would lack what the controller does not keep.

Rule: all who have the same page open at the same address share one look. At most `CONNECTIONS_MAX` questions
are under way, each in a thread of its own, so that a slow answer holds up nobody else's page. A controller
that is silent leaves the last answer there, with its age. Of what runs there is one question every `EVERY_S`;
where it fails it is asked again, and nothing else depends on it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar, cast

from anyio import CapacityLimiter, to_thread

from cotenant.controller.client.connection import Client, Refusal, Unreachable
from cotenant.controller.domain import Phase, texts
from cotenant.controller.system.endpoint import BadEndpoint
from cotenant.controller.system.keys import KeyProblem
from cotenant.controller.web.page import Asking, Page, Params, ShownElsewhere
from cotenant.controller.web.samples import JOBS_MAX, Samples
from cotenant.controller.web.simulations import Simulations
from cotenant.controller.wire import clients, wall_s

CONNECTIONS_MAX: Final = 4
TIMEOUT_S: Final = 5.0
KEPT_MAX: Final = 32
"""Addresses whose last answers are kept."""
SERVED_MAX: Final = 8
"""Pages whose news are about to be asked for."""
COSTLY_MAX: Final = 4
REST: Final = 20.0

T = TypeVar("T")
Answer = TypeVar("Answer")

EVERY_S: Final = 5.0


class Seen(NamedTuple):
    """The view that a page's look brought."""

    view: Any
    """None: nothing was ever answered."""
    at_s: float
    """When; monotonic."""
    trouble: Unreachable | None
    """Why `view` is not of now."""

    def age_s(self) -> float:
        return time.monotonic() - self.at_s


class Costly:
    """Answers to what takes the controller long: after each it is left alone for `REST` times as long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Any]] = {}

    def keep(self, name: str, act: Callable[[], T]) -> T:
        with self._lock:
            began_s = time.monotonic()
            until_s, before = self._kept.get(name, (0.0, None))
            if began_s < until_s:
                return cast(T, before)
            found = act()
            took_s = time.monotonic() - began_s
            self._kept.pop(name, None)
            self._kept[name] = (began_s + max(1.0, REST * took_s), found)
            while len(self._kept) > COSTLY_MAX:
                del self._kept[next(iter(self._kept))]
            return found


class ForPeople:
    """Asking, and shows the texts of others as they are (`domain/texts.py`)."""

    def __init__(self, client: Client, samples: Samples, costly: Costly, simulations: Simulations) -> None:
        self._client = client
        self._costly = costly
        self.samples, self.simulations = samples, simulations

    def keep(self, name: str, act: Callable[[], T]) -> T:
        return self._costly.keep(name, act)

    def ask(self, body: clients.Question[Answer], timeout_s: float | None = None) -> Answer:
        return texts.escape_texts(self._client.ask(body, timeout_s))


class Connections:
    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._idle: list[Client] = []
        self._costly = Costly()
        self.samples, self.simulations = Samples(), Simulations()
        self._limiter = CapacityLimiter(CONNECTIONS_MAX)
        self._kept: dict[tuple[str, Params], Seen] = {}
        self._served: dict[str, tuple[str, Params, Seen]] = {}
        self._numbers = count(1)
        self._locks: dict[tuple[str, Params], asyncio.Lock] = {}

    async def ask(self, act: Callable[[Asking], T]) -> T:
        """What `act` brings of its questions. Raises Unreachable, Refusal, and what `act` raises."""
        return await to_thread.run_sync(self._act, act, limiter=self._limiter)

    def _act(self, act: Callable[[Asking], T]) -> T:
        client = self._idle.pop() if self._idle else self._make_client()
        try:
            found = act(ForPeople(client, self.samples, self._costly, self.simulations))
        except (Refusal, ShownElsewhere):
            self._idle.append(client)
            raise
        except BaseException:
            client.close()
            raise
        self._idle.append(client)
        return found

    def _make_client(self) -> Client:
        try:
            return self._connect()
        except (KeyProblem, BadEndpoint) as error:  # A key that was there when we began.
            raise Unreachable(str(error)) from None

    async def look(self, page: Page, params: Params) -> Seen:
        """Looks for a page at the controller, as of now or of a moment ago. Raises Refusal,
        ShownElsewhere."""
        key = (page.name, params)
        async with self._locks.setdefault(key, asyncio.Lock()):
            before = self._kept.get(key)
            if before is not None and before.trouble is None and before.age_s() < 0.9 * page.every_s:
                return before
            try:
                view = await self.ask(lambda asks: page.look(asks, params))
                seen = Seen(view, time.monotonic(), None)
            except Unreachable as error:
                last = before or Seen(None, time.monotonic(), None)
                seen = last._replace(trouble=error)
            except (Refusal, ShownElsewhere):  # Of what is refused or elsewhere nothing is kept.
                self._locks.pop(key, None)
                raise
            self._keep(key, seen)
            return seen

    def _keep(self, key: tuple[str, Params], seen: Seen) -> None:
        self._kept.pop(key, None)
        self._kept[key] = seen
        while len(self._kept) > KEPT_MAX:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._locks.pop(oldest, None)

    def note_served(self, page: Page, params: Params, seen: Seen) -> str:
        """Notes what goes to a browser, whose news begin there, and returns the name to ask for the news
        with."""
        name = str(next(self._numbers))
        self._served[name] = page.name, params, seen
        while len(self._served) > SERVED_MAX:
            del self._served[next(iter(self._served))]
        return name

    def find_begun(self, page: Page, params: Params, name: str) -> Seen | None:
        """What the browser has that asks for news; once, for it has something else then."""
        *of, seen = self._served.pop(name, ("", params, None))
        return seen if of == [page.name, params] else None

    def close(self) -> None:
        self.simulations.stop()
        while self._idle:
            self._idle.pop().close()


async def watch(connections: Connections) -> None:
    """Until it is cancelled."""
    while True:
        with suppress(Unreachable, Refusal):  # The next round asks again, and a page that is open says it.
            await connections.ask(note_all)
        await asyncio.sleep(EVERY_S)


def note_all(asks: Asking) -> None:
    found = asks.ask(clients.ListJobs(states=(Phase.RUNNING,), limit=JOBS_MAX))
    for job in found.jobs:
        asks.samples.note(wall_s(found.now), job)
