"""The supervisor's side of `control.sock`: its agent, or two while one takes over from another.

Rule: nothing here can hold a supervisor up. A connection that breaks, talks nonsense or does not read is
closed; the next one starts with the whole status, so nothing is lost with it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from cotenant.agent.ipc.channel import EndedNow, GangOut, StatusNow, ToSupervisor
from cotenant.agent.ipc.framing import Deframer, framed, short_address
from cotenant.agent.ipc.records import Status
from cotenant.controller.wire.codec import BadMessage

CONNECTIONS_MAX: Final = 8
UNSENT_BYTES_MAX: Final = 1024 * 1024


class Connection:
    """One agent's."""

    def __init__(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        self.socket = opened
        self._deframer = Deframer(ToSupervisor)
        self._unsent = bytearray()
        self.is_open = True

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: StatusNow | EndedNow | GangOut) -> None:
        if not self.is_open:
            return
        self._unsent += framed(message)
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

    def receive(self) -> list[ToSupervisor]:
        """What has come in; closes itself at the end of the stream and at the first bad frame."""
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
            with short_address(path) as address:
                self.listener.bind(address)
        finally:
            os.umask(before)
        self.listener.listen(CONNECTIONS_MAX)
        self.connections: list[Connection] = []

    def accept(self, status: Status) -> Connection | None:
        """A new agent: it gets the whole status at once. The oldest goes if there are too many."""
        try:
            opened, _ = self.listener.accept()
        except OSError:
            return None
        self.forget_closed()
        if len(self.connections) >= CONNECTIONS_MAX:
            self.connections.pop(0).close()
        connection = Connection(opened)
        self.connections.append(connection)
        connection.send(StatusNow(status=status))
        return connection

    def say(self, message: StatusNow | EndedNow | GangOut) -> None:
        """To everybody; a word for the gang only to the newest, lest it is relayed twice."""
        for connection in self.connections[-1:] if isinstance(message, GangOut) else self.connections:
            connection.send(message)

    def forget_closed(self) -> None:
        self.connections = [each for each in self.connections if each.is_open]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.listener.close()
        self._path.unlink(missing_ok=True)
