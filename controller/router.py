"""The controller's one socket: its peers, their messages, and the answers. Rule: a peer is the owner of the
key it has proved to hold, and nobody else (on a Unix socket the socket's owner or, where accounts share it,
the account that the kernel names). Bytes come in bounded; a message that is too big never reaches us.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from cotenant.controller.system import endpoint, keys
from cotenant.controller.system.local_users import LocalUsers
from cotenant.controller.system.locks import Lock, LockTaken
from cotenant.controller.wire import MESSAGE_BYTES_MAX
from cotenant.controller.wire import clients as wire

BATCH: Final = 200
"""Messages read before other work gets its turn."""
BUSY_PER_S: Final = 1_000
GATHER_S: Final = 0.005
_LAST: Final = int(zmq.DONTWAIT)
_NOT_LAST: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"

Receive = Callable[[bytes, keys.Identity, bool, bytes], None]
"""(address to answer to, who, whether it is a client, frame)."""


class RouterError(Exception):
    """The endpoint cannot be opened; one line with what to do."""


class Router:
    """A ROUTER socket on the running loop. Both agents and clients come here."""

    def __init__(
        self, address: str, keys_dir: Path, receive: Receive, counters: Counter[str], users: str = ""
    ) -> None:
        """Opens the socket at `endpoint`. `users`: who shares a Unix socket, as `controller.users` has it.

        Raises:
            RouterError: in use, or not allowed.
            BadEndpoint: not an endpoint, its folder is not private, or no place or group for a shared socket.
            KeyProblem: a tcp endpoint without keys.
        """
        self.endpoint = address
        self.is_local = endpoint.socket_path(address) is not None
        self._receive = receive
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._pump_due = False
        self._paused = False
        self._is_busy = False
        self._counted = 0
        self._lock: Lock | None = None
        self._owner = keys.local_identity()
        self._users = _who_is_who(address, keys_dir, users)
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, 65_000)
        try:
            self._zap = None if self._users is None else self._open_zap()
            self._socket = self._open_socket(keys_dir)
        except BaseException:
            self._context.destroy(0)
            raise
        self._loop.add_reader(self._socket.FD, self._readable)
        self._pump_soon()

    def hand_to(self, receive: Receive, counters: Counter[str]) -> None:
        """From now on messages go to another receiver, and are counted there. Peers notice nothing."""
        self._receive, self._counters = receive, counters
        self._counted = 0

    def _open_socket(self, keys_dir: Path) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        for option, value in _OPTIONS:
            socket.setsockopt(option, value)
        path = endpoint.socket_path(self.endpoint)
        if self._users is not None:
            socket.setsockopt(zmq.ZAP_DOMAIN, b"cotenant")
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        if path is not None:
            self._bind_local(socket, path)
            return socket
        key = keys.read_key(keys_dir / keys.CONTROLLER_KEY)
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = key.public.encode(), key.secret.encode()
        socket.setsockopt(zmq.IPV6, 1 if "[" in self.endpoint else 0)
        try:
            socket.bind(self.endpoint)
        except zmq.ZMQError as error:
            raise RouterError(f"cannot listen at {self.endpoint}: {error.strerror}") from None
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        self.endpoint = bound.rstrip(b"\0").decode()  # With the port, if it was left open.
        return socket

    def _bind_local(self, socket: zmq.Socket[bytes], path: Path) -> None:
        endpoint.prepare_folder(path)
        try:
            self._lock = Lock(path.with_name(path.name + endpoint.LOCK_SUFFIX))
        except LockTaken as taken:
            raise RouterError(
                f"another controller (pid {taken.pid}) listens at {path}: stop it, or set controller.endpoint"
            ) from None
        is_shared = self._users is not None
        if is_shared:
            path.parent.chmod(0o755)
        # The socket is 0600 from its first moment on, or open to those whom `_judge` lets in.
        before = os.umask(0o111 if is_shared else 0o177)
        try:
            socket.bind(self.endpoint)
        except zmq.ZMQError as error:
            raise RouterError(f"cannot listen at {self.endpoint}: {error.strerror}") from None
        finally:
            os.umask(before)

    # --- Messages ----------------------------------------------------------------------------------

    def send(self, address: bytes, frame: bytes) -> bool:
        """Sends a frame to a peer; False: that peer is gone, or reads too slowly, and nothing was queued."""
        try:
            self._socket.send(address, _NOT_LAST)
            self._socket.send(frame, _LAST)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._counters["unsent"] += 1
            return False
        finally:
            self._pump_soon()  # Sending may have swallowed the edge that says "readable".
        return True

    def pause(self, paused: bool) -> None:
        """Read no more for now; peers' queues fill up and they wait."""
        self._paused = paused
        if not paused:
            self._pump_soon()

    def take_pulse(self, passed_s: float) -> None:
        """Called now and then: decides whether reading in batches pays."""
        self._is_busy = (self._counters["messages"] - self._counted) / passed_s > BUSY_PER_S
        self._counted = self._counters["messages"]

    def _readable(self) -> None:
        """Reads what has come. When busy, it waits a moment for more: every wake-up costs more than a
        message."""
        if not self._is_busy or self._pump_due:
            self._pump()
            return
        self._pump_due = True
        self._loop.remove_reader(self._socket.FD)
        self._loop.call_later(GATHER_S, self._flush_gathered)

    def _flush_gathered(self) -> None:
        if not self._socket.closed:
            self._loop.add_reader(self._socket.FD, self._readable)
            self._pump()

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Read what is there, up to a bound. The descriptor tells changes only, so read until empty."""
        self._pump_due = True  # Sending meanwhile schedules no second pump: this one reads on.
        is_empty = False
        try:
            for _ in range(BATCH):
                if self._paused or self._socket.closed:
                    is_empty = True
                    return
                address = self._socket.recv(zmq.DONTWAIT)
                self._counters["messages"] += 1
                self._take(address)
        except zmq.Again:
            is_empty = True
        finally:
            self._pump_due = False
            if not is_empty:
                self._pump_soon()

    def _take(self, address: bytes) -> None:
        """Takes in the rest of a message. Only the last frame says whose it is."""
        marks: list[bytes] = []
        last = self._socket.recv(copy=False)
        while last.more:
            marks.append(last.bytes)
            last = self._socket.recv(copy=False)
        who = self._who(last)
        if who is None or marks not in ([], [wire.CLIENT_MARK]):
            self._counters["bad_messages"] += 1
            return
        self._receive(address, who, bool(marks), last.bytes)

    def _who(self, frame: zmq.Frame) -> keys.Identity | None:
        """Asked for every message: a key that was taken back stops working at once."""
        if self._users is None:
            return self._owner
        try:
            key = frame.get("User-Id")
        except zmq.ZMQError:
            return None
        return self._users.get(key) if isinstance(key, str) else None

    def refresh_users(self) -> None:
        """Notice keys that were added or removed."""
        if self._users is not None:
            self._users.refresh()

    # --- Authentication ----------------------------------------------------------------------------

    def _open_zap(self) -> zmq.Socket[bytes]:
        """ZeroMQ asks here about every connection, before it lets a byte through (RFC 27)."""
        socket = self._context.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(ZAP_ENDPOINT)
        self._loop.add_reader(socket.FD, self._answer_zap)
        return socket

    def _answer_zap(self) -> None:
        assert self._zap is not None
        while not self._zap.closed and self._zap.poll(0):
            request = self._zap.recv_multipart()
            self._zap.send_multipart(self._judge(request))

    def _judge(self, request: list[bytes]) -> list[bytes]:
        version, request_id = request[0], request[1]
        user = b""
        if isinstance(self._users, LocalUsers):
            if request[5:6] == [b"NULL"]:
                user = self._users.admit(request[3].decode(errors="replace")).encode()
        elif len(request) == 7 and request[5] == b"CURVE" and len(request[6]) == 32:
            public = z85.encode(request[6])
            try:
                self.refresh_users()
            except keys.KeyProblem:
                self._counters["bad_users_file"] += 1  # What was read before stays in force.
            assert self._users is not None
            user = public if self._users.get(public.decode()) is not None else b""
        if not user:
            self._counters["unauthenticated"] += 1
            return [version, request_id, b"400", b"unknown key", b"", b""]
        return [version, request_id, b"200", b"OK", user, b""]

    def close(self) -> None:
        """Closes the socket; messages on their way get a second to leave."""
        self._loop.remove_reader(self._socket.FD)
        self._socket.close(linger=1000)
        if self._zap is not None:
            self._loop.remove_reader(self._zap.FD)
            self._zap.close(linger=0)
        self._context.term()
        path = endpoint.socket_path(self.endpoint)
        if path is not None and self._lock is not None:
            path.unlink(missing_ok=True)
            self._lock.release()


def _who_is_who(address: str, keys_dir: Path, users: str) -> keys.Users | LocalUsers | None:
    """The table of peers; None: all of them are the socket's owner."""
    path = endpoint.socket_path(address)
    if path is None:
        return keys.Users(keys_dir)
    if users and not endpoint.is_system_socket(path):
        raise endpoint.BadEndpoint(
            f"controller.users: a socket that accounts share lies in /run/NAME, not at {path}"
        )
    return LocalUsers(users) if users else None


_OPTIONS: Final = (
    (zmq.ROUTER_MANDATORY, 1),
    (zmq.LINGER, 1000),
    (zmq.BACKLOG, 8192),
    (zmq.SNDHWM, 2000),
    # Before we have read them, at most this many messages of one peer are kept.
    (zmq.RCVHWM, 200),
    (zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX + 4096),
    # The kernel finds peers whose machine has gone, in 30 s. ZeroMQ's own heartbeats would too, but with
    # thousands of peers a third of its thread's time went into their timers.
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 15),
    (zmq.TCP_KEEPALIVE_INTVL, 5),
    (zmq.TCP_KEEPALIVE_CNT, 3),
    (zmq.TCP_MAXRT, 30_000),
)


def raise_descriptor_limit() -> None:
    """Every peer costs a descriptor; take as many as we may have."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
