"""The supervisor's connections to agents, in its `select` loop.

Rule: an agent that is slow or gone never blocks the supervisor: what cannot be sent waits until there is
room, and a connection that is closed is forgotten. The files of the attempt's folder say the same as the
words here.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.agent.ipc.channel import EndedNow, GangOut, StatusNow, ToSupervisor
from cotenant.agent.ipc.records import Status
from cotenant.agent.supervisor.control import Connection, Control

FAREWELL_S: Final = 2.0


class Conversations:
    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        *,
        status: Callable[[], Status],
        heard: Callable[[ToSupervisor], None],
    ) -> None:
        """`path`: of the socket. `status`: what a new agent is told first."""
        self._control = Control(path)
        self._selector, self._status, self._heard = selector, status, heard
        selector.register(self._control.listener, selectors.EVENT_READ, self._accept)

    def say(self, message: StatusNow | EndedNow | GangOut) -> None:
        """To every agent that is connected."""
        self._control.say(message)
        for connection in list(self._control.connections):
            self._mind(connection)

    def say_farewell(self) -> None:
        """Give a connected agent a moment to take the last words, and close."""
        until_s = time.monotonic() + FAREWELL_S
        while any(each.has_unsent for each in self._control.connections) and time.monotonic() < until_s:
            for key, _ in self._selector.select(0.1):
                key.data()
        self._control.close()

    def _accept(self) -> None:
        connection = self._control.accept(self._status())
        if connection is not None and connection.is_open:
            events = selectors.EVENT_READ
            self._selector.register(connection.socket, events, lambda: self._talk(connection))
            self._mind(connection)

    def _talk(self, connection: Connection) -> None:
        connection.flush()
        for word in connection.receive() if connection.is_open else []:
            self._heard(word)
        self._mind(connection)

    def _mind(self, connection: Connection) -> None:
        """Wait for room where something is unsent; forget it when it is closed."""
        fd = next(
            (fd for fd, key in self._selector.get_map().items() if key.fileobj is connection.socket), None
        )
        if fd is None:
            return
        if not connection.is_open:
            self._selector.unregister(connection.socket)
            self._control.forget_closed()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_unsent else 0)
        self._selector.modify(connection.socket, events, self._selector.get_map()[fd].data)
