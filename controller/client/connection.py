"""Ask the controller: one blocking question, one typed answer.

Rule: small and quick to import (pyzmq, msgpack, msgspec), since every command line starts with it. A
question is sent again when the connection comes back and every few seconds; the controller answers a
repeated one as it did the first time, so a repeat is safe.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket as sockets
import struct
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
import zmq

from cotenant.controller.system.endpoint import BadEndpoint, check_owner, socket_path, user_endpoint
from cotenant.controller.system.keys import KeyFile, KeyProblem, find_key
from cotenant.controller.wire import BadMessage, decode, encode, request_in
from cotenant.controller.wire import clients as wire

REPEAT_S: Final = 5.0
CONNECT_S: Final = 3.0

Answer = TypeVar("Answer")


class Unreachable(Exception):
    """The error that nobody answered; `hint` says what to try."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Refusal(Exception):
    """The controller said no; `failure.code` maps to an exit code."""

    def __init__(self, failure: wire.Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Client:
    """A connection to one controller. Not for several threads at once."""

    def __init__(
        self, endpoint: str = "", keys: Path | KeyFile | None = None, *, timeout_s: float = 10.0
    ) -> None:
        """`keys` (a key file, its folder, or the key) is needed for tcp and ignored for ipc.

        Raises:
            BadEndpoint: see `cotenant.controller.system.endpoint`.
            KeyProblem: a tcp endpoint without a usable key.
        """
        self.endpoint = endpoint or user_endpoint()
        self.timeout_s = timeout_s
        self.patience_s = 0.0
        """How much longer to wait for a controller that has answered before: it may be starting again."""
        self.on_silence: Callable[[str], None] = lambda text: None
        """Called once in each silence, to say that the client waits."""
        self._answered = False
        self._path = socket_path(self.endpoint)
        self._key = None if self._path is not None else _usable_key(self.endpoint, keys)
        self._ids = itertools.count(1)
        self._connected = False
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None and self._monitor is not None and self._context is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)
            self._context.term()
        self._socket = self._monitor = self._context = None

    def ask(self, body: wire.Question[Answer], timeout_s: float | None = None) -> Answer:
        """Asks the controller a question and returns the answer.

        Raises:
            Unreachable: none within the time (default: the client's, plus what the request waits for).
            Refusal: the controller refused.
        """
        request: wire.Question[Any] = body
        if isinstance(request, wire.Submit) and not request.idempotency_key:
            request = msgspec.structs.replace(request, idempotency_key=os.urandom(16).hex())
        if timeout_s is None:
            timeout_s = self.timeout_s + _own_wait_s(request)
        deadline_s = time.monotonic() + timeout_s
        if self._socket is None:
            self._connect(min(CONNECT_S, timeout_s))
        asked = _Asked(next(self._ids), request)
        reply = self._exchange(asked, deadline_s)
        if reply is None and self._answered and self.patience_s > 0.0:
            self.on_silence(
                f"no answer from the controller; waiting for it for up to {self.patience_s:g} s more"
            )
            reply = self._exchange(asked, time.monotonic() + self.patience_s)
        if reply is None:
            raise Unreachable(
                f"no answer from the controller at {self.endpoint} within {timeout_s:g} s",
                self._silence_hint(),
            )
        self._answered = True
        if isinstance(reply, wire.Failure):
            raise Refusal(reply)
        return cast(Answer, reply)

    def _silence_hint(self) -> str:
        if self._key is not None and not self._connected:
            return "the connection was never accepted: is this key of this controller? try `cotenant doctor`"
        return "it may be busy or gone: try `cotenant doctor`"

    def _exchange(self, asked: _Asked, deadline_s: float) -> wire.Reply | None:
        assert self._socket is not None and self._monitor is not None
        frame = encode(asked._asdict())
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        send_at_s = time.monotonic()
        while (now_s := time.monotonic()) < deadline_s:
            if now_s >= send_at_s:
                # A full queue (no controller) drops the repeat; the queued one will do.
                self._try_send(frame)
                send_at_s = now_s + REPEAT_S
            ready = dict(poller.poll(_ms_until(min(send_at_s, deadline_s))))
            if self._monitor in ready and self._has_reconnected():
                send_at_s = time.monotonic()
            if self._socket in ready:
                reply = _read_reply(self._socket.recv_multipart()[-1], asked)
                if reply is not None and (reply.request_id or _is_of_versions(reply)):
                    return reply
        return None

    def _try_send(self, frame: bytes) -> None:
        assert self._socket is not None
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([wire.CLIENT_MARK, frame], zmq.DONTWAIT)

    def _has_reconnected(self) -> bool:
        """Whether the connection was made anew; a refusal of our key ends the wait."""
        assert self._monitor is not None
        again = False
        while self._monitor.poll(0):
            event, value = struct.unpack("=hi", self._monitor.recv_multipart()[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                again, self._connected = self._connected, True
            elif event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
                raise Unreachable(
                    f"the controller at {self.endpoint} does not accept this key (status {value})",
                    "ask an admin for a key made by `cotenant init` for this controller",
                )
        return again

    def _connect(self, timeout_s: float) -> None:
        """Raises Unreachable at once where nobody listens, instead of after the whole time-out."""
        _knock(self.endpoint, self._path, timeout_s)
        self._context = zmq.Context(io_threads=1)
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 16)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if self._key is not None:
            socket.curve_publickey = self._key.public.encode()
            socket.curve_secretkey = self._key.secret.encode()
            socket.curve_serverkey = self._key.server.encode()
        self._connected = False
        monitored = (
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        self._monitor = socket.get_monitor_socket(monitored)
        socket.connect(self.endpoint)
        self._socket = socket


def _usable_key(endpoint: str, keys: Path | KeyFile | None) -> KeyFile:
    if keys is None:
        raise KeyProblem(f"{endpoint} needs a key: set controller.keys_dir to your key file")
    return keys if isinstance(keys, KeyFile) else find_key(keys)


class _Asked(NamedTuple):
    """A `Request` as its sender knows it."""

    request_id: int
    body: wire.Question[Any]


def _own_wait_s(body: wire.Question[Any]) -> float:
    if isinstance(body, wire.WaitJobs):
        return body.timeout_s
    return body.wait_s if isinstance(body, wire.ReadJobLog) else 0.0


def _ms_until(moment_s: float) -> int:
    return 1 + int(1000 * max(0.0, moment_s - time.monotonic()))


def _read_reply(frame: bytes, asked: _Asked) -> wire.Reply | None:
    """Reads the reply to a question from a frame. None: the late answer to another question."""
    if request_in(frame) not in (asked.request_id, 0, None):
        return None
    try:
        reply: wire.Reply = decode(frame, wire.answer_to(type(asked.body)) | wire.Failure)
    except BadMessage as error:
        raise Unreachable(
            f"cannot read the controller's answer: {error}", "compare `cotenant version`"
        ) from None
    return reply


def _is_of_versions(reply: wire.Reply | None) -> bool:
    """The controller could not even read the number of our question."""
    return isinstance(reply, wire.Failure) and reply.code == "version" and reply.request_id == 0


def _knock(endpoint: str, path: Path | None, timeout_s: float) -> None:
    start = "start one with `cotenant up`, or set controller.endpoint"
    try:
        if path is not None:
            check_owner(path)
            with sockets.socket(sockets.AF_UNIX) as probe:
                probe.settimeout(timeout_s)
                probe.connect(os.fspath(path))
        else:
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            sockets.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except BadEndpoint as error:
        raise Unreachable(str(error)) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Unreachable(f"no controller at {endpoint} ({why})", start) from None
