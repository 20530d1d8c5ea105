"""Who receives messages in tests: a mail relay and a webhook, real servers on 127.0.0.1.

Rule: a receiver can be told to answer later, slowly or badly; every wait for a message has a limit.
"""

from __future__ import annotations

import base64
import json
import queue
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, TCPServer, ThreadingTCPServer
from typing import Any

from tests.building.limits import within_s


class _Server(ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


class Receiver:
    """A server on a thread, and the messages that it got."""

    def __init__(self, server: TCPServer) -> None:
        self._server = server
        self.port: int = server.server_address[1]
        self.got: queue.Queue[Any] = queue.Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._thread = threading.Thread(target=server.serve_forever)
        self._thread.start()

    def next(self) -> Any:
        """The next message; one that does not come fails the test."""
        return self.got.get(timeout=within_s(30.0))

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MailRelay(Receiver):
    """A relay that takes mail; with a `context` after STARTTLS and a login alone."""

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        relay = self
        self.logins: list[str] = []
        self.refuses = b""
        """What it says to every recipient."""

        class Talk(StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    relay.talk(self)
                self.connection.close()

        self.context = context
        super().__init__(_Server(("127.0.0.1", port), Talk))

    def talk(self, peer: StreamRequestHandler) -> None:
        say = peer.wfile.write
        say(b"220 relay\r\n")
        while line := peer.rfile.readline():
            word = line[:4].upper()
            if word == b"EHLO":
                say(b"250-relay\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n" if self.context else b"250 relay\r\n")
            elif word == b"STAR" and self.context is not None:
                say(b"220 go on\r\n")
                peer.connection = tls = self.context.wrap_socket(peer.connection, server_side=True)
                peer.rfile, peer.wfile = tls.makefile("rb"), tls.makefile("wb", buffering=0)  # type: ignore[assignment]
                say = peer.wfile.write
            elif word == b"AUTH":
                self.logins.append(base64.b64decode(line.split()[2]).decode().replace("\0", " ").strip())
                say(b"235 welcome\r\n")
            elif word == b"RCPT" and self.refuses:
                say(self.refuses)
            elif word == b"DATA":
                say(b"354 go on\r\n")
                data = b"".join(iter(peer.rfile.readline, b".\r\n"))
                self.got.put(message_from_bytes(data, policy=policy.default))
                self.may_answer.wait(within_s(60.0))
                say(b"250 taken\r\n")
            elif word == b"QUIT":
                say(b"221 bye\r\n")
                return
            else:
                say(b"250 fine\r\n")

    def next(self) -> EmailMessage:
        """The next mail; one that does not come fails the test."""
        mail = super().next()
        assert isinstance(mail, EmailMessage)
        return mail


class Hook(Receiver):
    """A webhook; what it got are pairs of headers and JSON. `drips`: it answers a byte at a time for ever."""

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None, *, drips: bool = False) -> None:
        hook = self
        self.status = 200

        class Talk(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.put((dict(self.headers), json.loads(body)))
                if drips:
                    with suppress(OSError):
                        for piece in hook.endless_answer():
                            self.wfile.write(piece)
                    return
                hook.may_answer.wait(within_s(60.0))
                with suppress(OSError):  # Whoever asked may have been killed.
                    self.send_response(hook.status)
                    self.send_header("Location", f"http://127.0.0.1:{hook.port}/elsewhere")
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Talk)
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        self.stops = threading.Event()
        super().__init__(server)

    def endless_answer(self) -> Iterator[bytes]:
        """An answer without an end, slow enough to trip no limit on a single read."""
        yield b"HTTP/1.1 200 OK\r\nX-Long: "
        while not self.stops.wait(0.05):
            yield b"x"

    def close(self) -> None:
        self.stops.set()
        super().close()
