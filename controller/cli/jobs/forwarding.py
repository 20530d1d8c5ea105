"""Ports of a job's host on this machine's loopback: for what a job serves to a browser.

Rule: each connection is a stream of its own through the controller, for the job's owner alone, and reaches
only what the job's own processes serve. What cannot be opened is said once, and the shell goes on.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from cotenant.controller.client.connection import Client, Refusal
from cotenant.controller.client.streams import READ_WAIT_S, WRITE_WAIT_S, StreamLine
from cotenant.controller.domain import JobId, texts
from cotenant.controller.wire import ClientStream

CONNECTIONS_MAX: Final = 32
LINKS_MAX: Final = 8
"""Ports that are opened because of what a job prints."""
LINE_BYTES_MAX: Final = 2048
_LINK: Final = re.compile(
    rb"(https?://)(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::\]):(\d{2,5})(/[^\s\x1b]*)?(?=[\s\x1b])"
)


class PortPair(NamedTuple):
    """A port here and one of the job's host."""

    here: int
    there: int


def port_pair(text: str) -> PortPair:
    """`8888`, or `8888:80`: here 8888, there 80. Raises ValueError."""
    words = text.split(":")
    if not 1 <= len(words) <= 2 or not all(map(_is_port, words)):
        raise ValueError(f"must be PORT or PORT:PORT of the job's host, got {text!r}")
    return PortPair(int(words[0]), int(words[-1]))


def _is_port(word: str) -> bool:
    return texts.is_whole_number(word) and 0 < int(word) < 65536


class LinkFinder:
    """Finds links to servers of the job's own host in its output, which comes cut anywhere."""

    def __init__(self) -> None:
        self._line = b""

    def find(self, output: bytes) -> Iterator[tuple[str, int, str]]:
        """The beginning, port and rest of each link."""
        self._line += output
        last = 0
        for found in _LINK.finditer(self._line):
            last = found.end()
            begin, port, rest = (each.decode(errors="replace") for each in found.groups(b"/"))
            if _is_port(port):
                yield begin, int(port), rest
        self._line = self._line[last:][-LINE_BYTES_MAX:]


class Forwards:
    """The ports of one attempt that are open here."""

    def __init__(self, client: Client, job_id: JobId, attempt: int, note: Callable[[str], None]) -> None:
        """Starts without any. `note`: tells the person at the terminal."""
        self._client, self._job_id, self._attempt, self._note = client, job_id, attempt, note
        self._idle: list[Client] = []
        self._free = threading.Semaphore(CONNECTIONS_MAX)
        self._listeners: dict[int, socket.socket] = {}
        """By port of the host."""
        self._finder = LinkFinder()
        self._refused = ""

    def open(self, pair: PortPair, *, or_any: bool = False) -> int:
        """Listens; returns the port here. `or_any`: another one, if that is taken. Raises OSError: it is."""
        try:
            listener = socket.create_server(("127.0.0.1", pair.here))
        except OSError:
            if not or_any:
                raise
            listener = socket.create_server(("127.0.0.1", 0))
        self._listeners[pair.there] = listener
        self._start(self._accept, listener, pair.there)
        port: int = listener.getsockname()[1]
        return port

    def open_asked(self, pair: PortPair) -> None:
        """Opens a port that the person asked for, and says what has become of it."""
        try:
            self.open(pair)
            self._note(f"127.0.0.1:{pair.here} here is port {pair.there} of the job")
        except OSError as error:
            self._note(
                f"port {pair.here} cannot be opened here: {error.strerror} (--forward OTHER:{pair.there})"
            )

    def look(self, output: bytes) -> None:
        """Opens what a job's output links to, and says where."""
        for begin, port, rest in self._finder.find(output):
            if port not in self._listeners and len(self._listeners) < LINKS_MAX:
                with suppress(OSError):
                    here = self.open(PortPair(port, port), or_any=True)
                    self._note(f"a tunnel to port {port} of its host: {begin}localhost:{here}{rest}")

    def close(self) -> None:
        """Takes no more connections."""
        for listener in self._listeners.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with suppress(OSError):
            while True:
                self._free.acquire()
                opened, _ = listener.accept()
                stream = ClientStream(os.urandom(8).hex(), port)
                self._start(self._carry, opened, stream)

    @contextmanager
    def _line(self) -> Iterator[StreamLine]:
        """A connection to the controller for as long as this lasts. That the stream is refused ends it."""
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._client.another()
        with suppress(Refusal):
            yield StreamLine(client, self._job_id, self._attempt)
        self._idle.append(client)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, name="tunnel", daemon=True).start()

    def _carry(self, opened: socket.socket, stream: ClientStream) -> None:
        """One connection, until either side has closed it."""
        up = threading.Thread(target=self._send, args=(opened, stream), name="tunnel up", daemon=True)
        up.start()
        with self._line() as line, suppress(OSError):
            while True:
                told = line.ask(stream.ask_to_read(READ_WAIT_S))
                if told.state == "refused" and told.why != self._refused:
                    self._refused = told.why
                    self._note(told.why)
                if told.state not in ("open", "away"):
                    break
                opened.sendall(stream.read(told) if told.state == "open" else b"")
        with suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)  # Wakes the other thread.
        up.join()
        opened.close()
        self._free.release()

    def _send(self, opened: socket.socket, stream: ClientStream) -> None:
        is_open = True
        with self._line() as line:
            while is_open:
                try:
                    data = opened.recv(stream.room)
                except OSError:
                    data = b""
                is_open = bool(data)
                stream.put(data, ends=not data)
                is_said = False
                while not is_said:
                    told = line.ask(stream.ask_to_write(WRITE_WAIT_S))
                    if told.state == "open":
                        stream.has_written(told)
                        is_said = stream.is_sent
                    elif told.state != "away":
                        return
