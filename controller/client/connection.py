"""Ask the controller: one blocking question, one typed answer.

Rule: small and quick to import (pyzmq, msgpack, msgspec), since every command line starts with it. A
question is sent again when the connection comes back and every few seconds; the controller answers a
repeated one as it did the first time, so a repeat is safe.

Where a standby is set as well, the question goes to one after the other until the one that leads answers, or
the time is over: during a take-over nobody leads for some seconds.
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
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar, cast

import msgspec
import zmq

from cotenant.controller.client.last_answer import note_answer, recall_answer
from cotenant.controller.system.endpoint import (
    BadEndpoint,
    check_owner,
    endpoints_of,
    is_system_socket,
    socket_path,
    user_endpoint,
)
from cotenant.controller.system.keys import KeyFile, KeyProblem, find_key
from cotenant.controller.wire import BadMessage, Route, decode, encode, request_in
from cotenant.controller.wire import clients as wire

REPEAT_S: Final = 5.0
CONNECT_S: Final = 3.0
ELSEWHERE_S: Final = 1.0
"""A controller that has not accepted the connection after this long is passed over if there is another. A
busy one gets twice the time in the next round, up to `ELSEWHERE_S_MAX`."""
ELSEWHERE_S_MAX: Final = 4.0
TOLD_AFTER_S: Final = 2.0
REST_S: Final = 0.1
"""After the first round in which nobody led; each rest is twice as long as the one before, up to
`REST_S_MAX`."""
REST_S_MAX: Final = 2.0
ALIVE_MS: Final = 1_000
"""How often ZeroMQ asks the controller's side of the connection for a sign of life, where there is another
controller; without one for twice as long the connection counts as lost."""

Answer = TypeVar("Answer")


class Unreachable(Exception):
    """The error that nobody answered; `hint` says what to try."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class _Elsewhere(Unreachable):
    """Another controller may answer."""


class _NobodyListens(_Elsewhere):
    """There is no controller at the endpoint now; nothing was sent to it."""


class Refusal(Exception):
    """The controller said no; `failure.code` maps to an exit code."""

    def __init__(self, failure: wire.Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Client:
    """A connection to the controller that leads. Not for several threads at once."""

    def __init__(
        self,
        endpoint: str | tuple[str, ...] = "",
        keys: Path | KeyFile | None = None,
        *,
        timeout_s: float = 10.0,
    ) -> None:
        """Prepares a connection to one endpoint or, in order, to several. `keys` (a key file, its folder, or
        the key) is needed for tcp and ignored for ipc.

        Raises:
            BadEndpoint: see `cotenant.controller.system.endpoint`.
            KeyProblem: a tcp endpoint without a usable key.
        """
        endpoints = endpoints_of(endpoint) or (user_endpoint(),)
        self._route = Route(endpoints, recall_answer(endpoints) if len(endpoints) > 1 else "")
        self.timeout_s = timeout_s
        self.patience_s = 0.0
        """How much longer to wait for a controller that has answered before: it may be starting again."""
        self.is_expected = False
        """Wait so long for one that has not answered yet, too, where nobody listens."""
        self.stand_in: Callable[[wire.Question[Any]], wire.Reply | None] = lambda question: None
        """Answers where nobody listens; None: it cannot."""
        self.on_silence: Callable[[str], None] = lambda text: None
        """Called once in each silence, to say that the client waits."""
        self._answered = False
        self._path = socket_path(self.endpoint)
        self._key = None if self._path is not None else _usable_key(self.endpoint, keys)
        self._why: dict[str, str] = {}
        """Of several controllers: why the last attempt at each one came to nothing. In words: an exception's
        traceback would hold this client, and a collector that finds both ends the context before its sockets,
        for which it waits for ever."""
        self._ids = itertools.count(1)
        self._connected = False
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    @property
    def endpoint(self) -> str:
        """Whom it asks now."""
        return self._route.current

    def another(self) -> Client:
        """Another client of the same controllers, for another thread."""
        return Client(self._route.endpoints, self._key, timeout_s=self.timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
        for each in filter(None, (self._monitor, self._socket)):
            each.close(0)
        if self._context is not None:
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
        reply = self._send_snapshots(request, timeout_s) or self._reply_to(request, timeout_s)
        if isinstance(reply, wire.Failure):
            raise Refusal(reply)
        return cast(Answer, reply)

    def _send_snapshots(self, request: wire.Question[Any], timeout_s: float) -> wire.Failure | None:
        """Sends the packed trees that the controller lacks, before the jobs that are to run in them."""
        if not isinstance(request, wire.Submit) or request.dry_run:
            return None
        trees = {spec.launch.snapshot for spec in request.specs} - {None}
        if not trees:
            return None
        from cotenant.controller.client.snapshots import send_tree  # Few submissions have one.

        sent = (send_tree(tree, lambda body: self._reply_to(body, timeout_s)) for tree in trees if tree)
        return next(filter(None, sent), None)

    def _reply_to(self, request: wire.Question[Any], timeout_s: float) -> wire.Reply:
        """The answer, or the refusal. Raises Unreachable."""
        asked = _Asked(next(self._ids), request)
        reply = self._seek_listener(asked, timeout_s)
        if reply is None and self._answered and self.patience_s > 0.0:
            self.on_silence(
                f"no answer from the controller; waiting for it for up to {self.patience_s:g} s more"
            )
            reply = self._seek(asked, time.monotonic() + self.patience_s)
        if reply is None:
            raise self._silence(timeout_s)
        self._answered = True
        return reply

    def _seek_listener(self, asked: _Asked, timeout_s: float) -> wire.Reply | None:
        """As `_seek`, and where nobody listens at the only endpoint, it waits until somebody does or asks the
        stand-in. Nothing has been sent by then, so nothing is sent twice."""
        began_s, is_told = time.monotonic(), False
        while True:
            try:
                return self._seek(asked, time.monotonic() + timeout_s)
            except _NobodyListens as error:
                if (reply := self.stand_in(asked.body)) is not None:
                    return reply
                waited_s = time.monotonic() - began_s
                if not self.is_expected or waited_s >= self.patience_s:
                    raise
                if waited_s >= TOLD_AFTER_S and not is_told:
                    self.on_silence(f"{error}: waiting for it for up to {self.patience_s:g} s; {error.hint}")
                    is_told = True
            time.sleep(REST_S)

    def _silence(self, timeout_s: float) -> Unreachable:
        hint = "it may be busy or gone: try `cotenant doctor`"
        if not self._route.is_only:
            whys = "; ".join(self._why.get(each, f"{each}: no answer") for each in self._route.endpoints)
            return Unreachable(f"no controller that leads has answered within {timeout_s:g} s: {whys}", hint)
        if self._key is not None and not self._connected:
            hint = "the connection was never accepted: is this key of this controller? try `cotenant doctor`"
        return Unreachable(f"no answer from the controller at {self.endpoint} within {timeout_s:g} s", hint)

    # --- Who leads -----------------------------------------------------------------------------------

    def _seek(self, asked: _Asked, deadline_s: float) -> wire.Reply | None:
        """Asks until the controller that leads answers. None: the time is over."""
        rounds = 0
        while time.monotonic() < deadline_s:
            try:
                reply = self._ask_one(asked, deadline_s, min(ELSEWHERE_S * 2**rounds, ELSEWHERE_S_MAX))
            except _Elsewhere as error:
                if self._route.is_only:
                    raise
                self._why[self.endpoint] = str(error)
            else:
                if reply is None and not self._route.is_only:  # The next question is for another.
                    self.close()
                    self._route.move_on()
                if not _is_of_standby(reply) or self._route.is_only:
                    return reply
                self._why[self.endpoint] = f"{self.endpoint}: {reply.message}"
                if self._route.follow(reply.leader):
                    self.close()
                    continue
            self.close()
            if self._route.is_round_over:
                rest_s = min(REST_S * 2**rounds, REST_S_MAX, deadline_s - time.monotonic())
                time.sleep(max(0.0, rest_s))
                rounds += 1
            self._route.move_on()
        return None

    def _ask_one(self, asked: _Asked, deadline_s: float, accept_s: float) -> wire.Reply | None:
        """Asks the present one. Raises _Elsewhere: it is not there, or does not accept the connection within
        `accept_s` while there is another."""
        if self._socket is None:
            most_s = CONNECT_S if self._route.is_only else ELSEWHERE_S
            self._connect(max(0.001, min(most_s, deadline_s - time.monotonic())))
        accept_by_s = deadline_s if self._route.is_only else time.monotonic() + accept_s
        reply = self._exchange(asked, deadline_s, accept_by_s)
        if reply is not None and not _is_of_standby(reply) and not self._route.is_only:
            self._route.note_answer()
            note_answer(self._route.endpoints, self.endpoint)
        return reply

    def _exchange(self, asked: _Asked, deadline_s: float, accept_by_s: float) -> wire.Reply | None:
        assert self._socket is not None and self._monitor is not None
        frame = encode(asked._asdict())
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        send_at_s = time.monotonic()
        while (now_s := time.monotonic()) < (deadline_s if self._connected else min(accept_by_s, deadline_s)):
            if now_s >= send_at_s:
                # A full queue (no controller) drops the repeat; the queued one will do.
                self._try_send(frame)
                send_at_s = now_s + REPEAT_S
            until_s = min(send_at_s, deadline_s if self._connected else accept_by_s)
            ready = dict(poller.poll(_ms_until(until_s)))
            if self._monitor in ready and self._has_reconnected():
                send_at_s = time.monotonic()
            if self._socket in ready:
                reply = _read_reply(self._socket.recv_multipart()[-1], asked)
                if reply is not None and (reply.request_id or _is_of_versions(reply)):
                    return reply
        if not self._connected and accept_by_s < deadline_s:
            raise _Elsewhere(f"{self.endpoint}: it does not accept the connection")
        return None

    def _try_send(self, frame: bytes) -> None:
        assert self._socket is not None
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([wire.CLIENT_MARK, frame], zmq.DONTWAIT)

    def _has_reconnected(self) -> bool:
        """Whether the connection was made anew. Raises _Elsewhere: our key was refused, or the connection was
        lost while there is another controller."""
        assert self._monitor is not None
        again = False
        while self._monitor.poll(0):
            event, value = struct.unpack("=hi", self._monitor.recv_multipart()[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                again, self._connected = self._connected, True
            elif event in (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
                who, ask_for = "this key", "a key made by `cotenant init` for this controller"
                if self._path is not None:
                    who, ask_for = "this account", "a place in the group that controller.users names"
                raise _Elsewhere(
                    f"the controller at {self.endpoint} does not accept {who} (status {value})",
                    f"ask an admin for {ask_for}",
                )
            elif event == zmq.EVENT_DISCONNECTED and not self._route.is_only:
                raise _Elsewhere(f"{self.endpoint}: the connection was lost")
        return again

    def _connect(self, timeout_s: float) -> None:
        """Raises _Elsewhere at once where nobody listens, instead of after the whole time-out."""
        _knock(self.endpoint, self._path, timeout_s)
        try:
            self._make_socket()
        except BaseException:
            self.close()
            raise

    def _make_socket(self) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 16)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if self._key is not None:
            socket.curve_publickey = self._key.public.encode()
            socket.curve_secretkey = self._key.secret.encode()
            socket.curve_serverkey = self._key.server.encode()
        self._connected = False
        if not self._route.is_only:
            socket.setsockopt(zmq.HEARTBEAT_IVL, ALIVE_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2 * ALIVE_MS)
        monitored = (
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED
        )
        self._monitor = socket.get_monitor_socket(monitored)
        socket.connect(self.endpoint)


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


def _is_of_standby(reply: wire.Reply | None) -> TypeGuard[wire.Failure]:
    return isinstance(reply, wire.Failure) and reply.code == "standby"


def _is_of_versions(reply: wire.Reply | None) -> bool:
    """The controller could not even read the number of our question."""
    return isinstance(reply, wire.Failure) and reply.code == "version" and reply.request_id == 0


def _knock(endpoint: str, path: Path | None, timeout_s: float) -> None:
    start = "start one with `cotenant up`, or set controller.endpoint"
    if path is not None and is_system_socket(path):
        start = "it is a service of this machine: sudo cotenant service status"
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
        is_wrong = isinstance(error, ValueError | PermissionError | sockets.gaierror)
        kind = _Elsewhere if is_wrong else _NobodyListens
        raise kind(f"no controller at {endpoint} ({why})", start) from None
