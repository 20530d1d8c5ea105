"""The supervisor's connections to its agent (or two, while one takes over from another), in its `select`
loop.

Rule: nothing here can block a supervisor. It closes a connection that breaks, sends nonsense or does not
read; the next one starts with the whole status, so nothing is lost. What it cannot send to a slow agent waits
until there is room. The files of the attempt's folder hold the same as these messages.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.agent.ipc import channel, records
from cotenant.controller.wire import BadMessage, StreamReply

CONNECTIONS_MAX: Final = 8
UNSENT_BYTES_MAX: Final = 1024 * 1024
FAREWELL_S: Final = 2.0


class Connection:
    """The connection of one agent."""

    def __init__(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        self.socket = opened
        self._deframer = channel.Deframer(channel.ToSupervisor)
        self._unsent = bytearray()
        self.is_open = True

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def has_room(self) -> bool:
        """Whether the agent reads what it is sent."""
        return len(self._unsent) < UNSENT_BYTES_MAX // 4

    def send(self, message: channel.FromSupervisor) -> None:
        if not self.is_open:
            return
        self._unsent += channel.frame_message(message)
        self.flush()
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self.close()

    def flush(self) -> None:
        """Write what the other side takes now."""
        try:
            while self._unsent and self.is_open:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def receive(self) -> list[channel.ToSupervisor]:
        """Returns the messages that have come in; closes the connection at the end of the stream and at the
        first bad frame."""
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        try:
            if data:
                return self._deframer.feed(data)
        except BadMessage:
            pass
        self.close()
        return []

    def close(self) -> None:
        self.is_open = False
        self._unsent.clear()
        self.socket.close()


class Control:
    """Listens, and speaks to whoever is connected."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)  # Never, not even for a moment, open to others.
        try:
            with channel.short_address(path) as address:
                self.listener.bind(address)
        finally:
            os.umask(before)
        self.listener.listen(CONNECTIONS_MAX)
        self.connections: list[Connection] = []

    def accept(self, status: records.Status) -> Connection | None:
        """Accepts a new agent: it gets the whole status at once. The oldest goes if there are too many."""
        try:
            opened, _ = self.listener.accept()
        except OSError:
            return None
        self.forget_closed()
        if len(self.connections) >= CONNECTIONS_MAX:
            self.connections.pop(0).close()
        connection = Connection(opened)
        self.connections.append(connection)
        connection.send(channel.StatusNow(status=status))
        return connection

    def say(self, message: channel.FromSupervisor) -> None:
        """Sends a message to every agent; what is relayed only to the newest, so that it is relayed once."""
        is_relayed = isinstance(message, channel.GangOut | StreamReply)
        for connection in self.connections[-1:] if is_relayed else self.connections:
            connection.send(message)

    def forget_closed(self) -> None:
        self.connections = [each for each in self.connections if each.is_open]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.listener.close()
        self._path.unlink(missing_ok=True)


class Conversations:
    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        *,
        status: Callable[[], records.Status],
        heard: Callable[[channel.ToSupervisor], None],
    ) -> None:
        """Opens the socket for agents and listens. `path`: of the socket. `status`: what a new agent is told
        first."""
        self._control = Control(path)
        self._selector, self._status, self._heard = selector, status, heard
        selector.register(self._control.listener, selectors.EVENT_READ, self._accept)

    def say(self, message: channel.FromSupervisor) -> None:
        """Sends a message to every agent that is connected."""
        self._control.say(message)
        for connection in list(self._control.connections):
            self._mind(connection)

    @property
    def has_room(self) -> bool:
        """Whether the newest agent reads what it is told."""
        return bool(self._control.connections) and self._control.connections[-1].has_room

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
        """Wait for room where something is unsent; forget a closed connection."""
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
