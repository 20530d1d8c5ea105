"""A connection from a job's owner to a port of this host's loopback at which a process of the job listens."""

from __future__ import annotations

import os
import re
import selectors
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.host.process_identity import tree_of
from cotenant.controller.wire import HostStream

CONNECT_S: Final = 0.2
READ_BYTES: Final = 64 * 1024
LISTENS: Final = "0A"
_REACHED: Final = frozenset(("00000000", "0100007F", "0" * 32, "0000000000000000FFFF00000100007F"))
"""Addresses at which a connection to 127.0.0.1 may arrive, as the kernel of a little-endian machine writes
them: any, 127.0.0.1, and both in IPv6."""
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


class NoConnection(Exception):
    """Why there is no connection to a port."""


class PortConnection:
    """The host's end of one connection."""

    def __init__(self, port: int, selector: selectors.BaseSelector) -> None:
        """Connects. Raises NoConnection: nobody listens there, or another than the job's own processes."""
        found = listeners(port)
        if not found:
            raise NoConnection(f"nothing listens at 127.0.0.1:{port} of its host")
        if not found <= sockets_of(tree_of(os.getpid())[1:]):
            raise NoConnection(f"port {port} of its host is not the job's")
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), CONNECT_S)
        except OSError as error:
            raise NoConnection(f"port {port} of its host: {error.strerror or error}") from None
        self._socket.setblocking(False)
        self._selector, self._is_watched, self._is_shut = selector, False, False
        self.stream = HostStream()
        self.stream.follow()

    def read(self) -> None:
        """Takes what has come, as far as its client asks for it."""
        stream = self.stream
        with suppress(BlockingIOError):
            while stream.room and not stream.is_over:
                try:
                    data = self._socket.recv(min(stream.room, READ_BYTES))
                except ConnectionError:
                    data = b""
                stream.sent.put(data)
                stream.is_over = not data
        self._watch(bool(stream.room) and not stream.is_over)

    def write(self) -> None:
        """Passes on what has come from the client."""
        stream = self.stream
        try:
            while stream.unwritten:
                del stream.unwritten[: self._socket.send(stream.unwritten)]
            if stream.has_ended and not self._is_shut:
                self._is_shut = True
                self._socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            stream.unwritten.clear()

    def _watch(self, wanted: bool) -> None:
        """Whether more of it wakes the supervisor."""
        if wanted and not self._is_watched:
            self._selector.register(self._socket, selectors.EVENT_READ, lambda: None)
        elif self._is_watched and not wanted:
            self._selector.unregister(self._socket)
        self._is_watched = wanted

    def close(self) -> None:
        self._watch(False)
        self._socket.close()


def listeners(
    port: int, tables: Iterable[Path] = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
) -> set[int]:
    """Inodes of the sockets that a connection to 127.0.0.1 and this port may reach."""
    found = set()
    for table in tables:
        with suppress(OSError), table.open(errors="replace") as lines:  # As many as all users have sockets.
            next(lines, "")
            for line in lines:
                words = line.split()
                address, _, number = words[1].partition(":")
                if words[3] == LISTENS and int(number, 16) == port and address in _REACHED:
                    found.add(int(words[9]))
    return found


def sockets_of(pids: Iterable[int]) -> set[int]:
    """Inodes of the sockets that these processes hold."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    held = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}"))
                    found |= {int(held[1])} if held else set()
    return found
