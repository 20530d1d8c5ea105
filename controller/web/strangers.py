"""Connections that have shown no session yet: how many there may be, and how long each may last.

Rule: everybody on the machine can connect, and what that costs is bounded here. A connection on which no
request has shown a session ends after `WITHIN_S`, whatever it has sent or read by then: nothing, half a
header, a body byte by byte. Where there are more than `STRANGERS_MAX` of them the oldest ends at once. A
connection that has shown a session is not counted: strangers, however many, take nothing from it. One turn of
the event loop accepts at most `BACKLOG` connections, far fewer than `STRANGERS_MAX`: a request that is sent
with its connection is read before so many others can displace it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

STRANGERS_MAX: Final = 512
WITHIN_S: Final = 10.0
BACKLOG: Final = 128
ENDING_S: Final = 2
HEADER_BYTES_MAX: Final = 64 * 1024
"""A browser sends the cookies of all ports of a host: other programs may have left many."""
LET_STAY: Final = "let_stay"
"""In a scope's state: to be called when the request has shown a session."""


class Strangers:
    def __init__(self, most: int = STRANGERS_MAX, within_s: float = WITHIN_S) -> None:
        self._most = most
        self._within_s = within_s
        self._ends: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def add(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        self._ends[transport] = loop.call_later(self._within_s, transport.abort)
        while len(self._ends) > self._most:
            oldest = next(iter(self._ends))
            self.remove(oldest)
            oldest.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Removes a connection that has ended, or has shown a session."""
        if (end := self._ends.pop(transport, None)) is not None:
            end.cancel()


class BoundedProtocol(H11Protocol):
    """The HTTP/1.1 protocol of uvicorn; a connection is a stranger's until `let_stay` is called."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, LET_STAY: self.let_stay}, _loop)
        self._strangers: Strangers = app_state["strangers"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._strangers.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._strangers.remove(self.transport)
        super().connection_lost(exc)

    def let_stay(self) -> None:
        self._strangers.remove(self.transport)


def server_config(app: Any) -> Config:
    """How the page is served. Warnings are not logged: each bad request of a stranger would be a line."""
    return Config(
        app,
        loop="asyncio",
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        timeout_graceful_shutdown=ENDING_S,
    )
