"""The supervisor's sockets: `control.sock` for its agent (or two, while one takes over from another) and the
datagrams of the job's own library, both in its `select` loop; and the one on which a supervisor that was
started ahead waits for an attempt.

Rule: nothing here can block a supervisor. It closes a connection that breaks, sends nonsense or does not
read; the next one starts with the whole status, so nothing is lost. What it cannot send to a slow agent waits
until there is room. The files of the attempt's folder hold the same as these messages.

Datagrams may be lost both ways, and what a job says is foreign (`rank_messages.py`): nothing here waits for a
rank, and a flood of datagrams does not starve the others. The folder is the job's user's from the moment the
socket is in it: a rank is written to only where the socket of its name is that user's own.

Until it has an attempt, a supervisor that waits for one holds no lock, has written nothing, and ends with its
agent. The agent hands it what it would have been started with; the locks among it stay held while the message
is on its way.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.host.user_files import OpenFolder
from cotenant.agent.ipc import (
    JOB_SOCKET,
    Deframer,
    EndedNow,
    GangOut,
    Order,
    Status,
    StatusNow,
    ToSupervisor,
    framed,
    short_address,
)
from cotenant.agent.supervisor.core import AnyRankWord, parse
from cotenant.agent.supervisor.processes import give_job_folder, make_job_folder
from cotenant.controller.wire import DATAGRAM_BYTES_MAX, BadMessage

# --- Agents ----------------------------------------------------------------------------------------


CONNECTIONS_MAX: Final = 8
UNSENT_BYTES_MAX: Final = 1024 * 1024
FAREWELL_S: Final = 2.0


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
        """To every agent; a message for the gang only to the newest, so that it is relayed once."""
        for connection in self.connections[-1:] if isinstance(message, GangOut) else self.connections:
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


# --- The job ---------------------------------------------------------------------------------------


DATAGRAMS_MAX: Final = 64
"""Taken in one go, before others get their turn."""


class Datagrams:
    def __init__(
        self,
        folder: Path,
        order: Order,
        selector: selectors.BaseSelector,
        heard: Callable[[AnyRankWord], None],
    ) -> None:
        self.path = make_job_folder(folder, order) / JOB_SOCKET
        """What ranks are told."""
        self._folder = OpenFolder.at(self.path.parent)
        self._uid = order.launch.uid if os.geteuid() == 0 else os.geteuid()
        self._heard = heard
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            self._socket.bind(str(self.path))
        finally:
            os.umask(before)
        give_job_folder(self._folder, order)
        selector.register(self._socket, selectors.EVENT_READ, self._read)

    def tell(self, rank: int, data: bytes) -> None:
        try:
            with self._folder.socket(f"rank-{rank}.sock", self._uid) as address:
                self._socket.sendto(data, address)
        except OSError:
            return  # Gone, not its own, or its queue is full: the agreement repeats it.

    def read_file(self, name: str, bytes_max: int) -> bytes:
        """What a rank has left in the folder. Raises OSError."""
        return self._folder.read(name, bytes_max)

    def close(self) -> None:
        self._socket.close()
        with suppress(OSError):
            self._folder.unlink(JOB_SOCKET)
        self._folder.close()

    def _read(self) -> None:
        for _ in range(DATAGRAMS_MAX):
            try:
                data = self._socket.recv(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                return
            word = parse(data)
            if word is not None:
                self._heard(word)


# --- Before there is an attempt --------------------------------------------------------------------


FOLDER_BYTES_MAX: Final = 4096
DESCRIPTORS_MAX: Final = 250
"""The kernel passes 253 in one message."""


def handed_over(number: int) -> list[str] | None:
    """The arguments of the supervisor, once the agent has an attempt for it at the other end of this socket;
    None: the agent is gone, or wants it no longer."""
    with socket.socket(fileno=number) as agent:
        folder, descriptors, flags, _ = socket.recv_fds(agent, FOLDER_BYTES_MAX, DESCRIPTORS_MAX)
    if not folder or len(descriptors) < 2 or flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        return None
    log, secrets, *_ = descriptors  # The others are locks, held for as long as we live.
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    return [os.fsdecode(folder), str(secrets)]
