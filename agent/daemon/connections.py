"""The agent's ends of its connections: to its controller, and to each supervisor.

Rule: sending never waits. The link to the controller drops and counts what it cannot send now: the agent
repeats everything that matters until the controller confirms it, and a queue of old messages would arrive as
news. The link decodes and checks what comes in; it counts bad frames and logs them at most once a minute.

A connection to a supervisor may break at any time and means nothing by itself; each new one starts with the
supervisor's whole status, and the state machine repeats what must arrive. The agent does not wait for a
supervisor that does not read.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq

from cotenant.agent.daemon.core import edge, remembered
from cotenant.agent.ipc import channel, files, records
from cotenant.controller import domain, wire
from cotenant.controller.system.endpoint import BadEndpoint, check_owner, socket_path
from cotenant.controller.system.keys import KeyFile

# --- To the controller -----------------------------------------------------------------------------


RECONNECT_MS: Final = 200
RECONNECT_MS_MAX: Final = 2000
QUEUE_MAX: Final = 1000
HANDSHAKE_MS: Final = 10_000
HEARTBEAT_MS: Final = 5_000
_LINK_OPEN: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED
_LINK_CLOSED: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
COMPLAIN_PERIOD_S: Final = 60.0
_DRAIN_MAX: Final = 100
"""Messages taken in one go, before others get their turn."""
_TOKEN: Final = re.compile(r"[0-9A-Za-z]{0,64}")
_JOB_ID: Final = re.compile(r"[0-9A-Za-z]+(_[0-9A-Za-z]+)*")


class ControllerLink:
    def __init__(
        self,
        endpoint: str,
        name: str,
        key: KeyFile | None,
        *,
        post: Callable[[wire.ToAgent], None],
        log: Callable[[str], None],
        changed: Callable[[edge.LinkChanged], None] | None = None,
    ) -> None:
        """Checks the endpoint; the link connects with `open`. `name` is unique among all agents and their
        starts. `changed` hears when a connection opens or closes.

        Raises:
            BadEndpoint: nothing to connect to, or TCP without a key.
        """
        self._socket_file = socket_path(endpoint)
        if self._socket_file is None and key is None:
            raise BadEndpoint(f"{endpoint} needs keys: set agent.keys_dir to what `cotenant init` made")
        self._endpoint = endpoint
        self._name = name
        self._connections = 0
        self._key = key
        self._post = post
        self._log = log
        self._changed = changed
        self._monitor: zmq.Socket[bytes] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._complained_s = float("-inf")
        self.bad_messages = 0
        self.unsent_messages = 0

    def open(self) -> None:
        """Connects to the controller; one that is not there yet is found when it comes.

        Raises:
            BadEndpoint: the socket belongs to another user.
        """
        if self._socket_file is not None:
            _refuse_strangers(self._socket_file)
        socket = self._context.socket(zmq.DEALER)
        # A name of its own for each connection: a ROUTER ignores a new connection by the name of an old one
        # that it has not yet seen close.
        self._connections += 1
        socket.setsockopt(zmq.IDENTITY, f"{self._name}/{self._connections}".encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # Nothing waits for a controller that is not there.
        socket.setsockopt(zmq.SNDHWM, QUEUE_MAX)
        socket.setsockopt(zmq.RCVHWM, QUEUE_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        if self._key is not None and self._socket_file is None:
            socket.curve_publickey = self._key.public.encode()
            socket.curve_secretkey = self._key.secret.encode()
            socket.curve_serverkey = self._key.server.encode()
        if self._changed is not None:
            self._monitor = socket.get_monitor_socket(_LINK_OPEN | _LINK_CLOSED)
            asyncio.get_running_loop().add_reader(self._monitor.fileno(), self._look_at_link)
            # The descriptor reports only what comes after somebody has looked and found nothing.
            asyncio.get_running_loop().call_soon(self._look_at_link)
        socket.connect(self._endpoint)
        self._socket = socket
        asyncio.get_running_loop().add_reader(socket.fileno(), self._drain)

    def send(self, message: wire.FromAgent) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(wire.encode(message), zmq.DONTWAIT)
        except zmq.Again:
            self.unsent_messages += 1
        except wire.BadMessage as error:
            self._complain(f"cannot send {type(message).__name__}: {error}")
        # The descriptor reports changes, not states: what came in while we sent would go unnoticed.
        self._wake()

    def reconnect(self, endpoint: str = "") -> None:
        """Makes a fresh connection, to another controller if one is named: the old one may be half dead, and
        its queue stale."""
        self.close()
        self._endpoint = endpoint or self._endpoint
        self.open()

    def close(self) -> None:
        if self._monitor is not None and self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._monitor.fileno())
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._monitor = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close(linger=0)
            self._socket = None

    def end(self) -> None:
        self.close()
        self._context.term()

    def _look_at_link(self) -> None:
        """Tells what has become of the connection. What it tells may close it."""
        monitor = self._monitor
        while monitor is not None and monitor is self._monitor and monitor.poll(0):
            (event,) = struct.unpack_from("=h", monitor.recv_multipart()[0])
            assert self._changed is not None
            self._changed(edge.LinkChanged(endpoint=self._endpoint, is_open=event == _LINK_OPEN))

    def _wake(self) -> None:
        if self._socket is not None and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        for _ in range(_DRAIN_MAX):
            if self._socket is None:
                return
            try:
                parts = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._take(parts)
        self._wake()

    def _take(self, parts: list[bytes]) -> None:
        try:
            if len(parts) != 1:
                raise wire.BadMessage(f"{len(parts)} parts in place of one")
            message: wire.ToAgent = wire.decode(parts[0], wire.ToAgent)
            check_names(message)
        except wire.BadMessage as error:
            self.bad_messages += 1
            self._complain(f"dropped a message from the controller ({self.bad_messages} so far): {error}")
            return
        self._post(message)

    def _complain(self, text: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._complained_s + COMPLAIN_PERIOD_S:
            self._complained_s = now_s
            self._log(text)


def check_names(message: wire.ToAgent) -> None:
    """A job's number and the token of its epoch become the name of a folder: no other characters may.

    Raises: BadMessage: it has other characters in it."""
    match message:
        case wire.CommandDelivery(command=command):
            if isinstance(command, domain.TrustDevices):
                return
            job_id, job_epoch = command.job_id, command.job_epoch
        case wire.ReadLog(job_id=job_id) | wire.GangRelay(job_id=job_id) | wire.AskStream(job_id=job_id):
            job_epoch = ""
        case _:
            return
    if not _JOB_ID.fullmatch(job_id) or len(job_id) > 64:
        raise wire.BadMessage(f"{job_id[:80]!r} is not a job number")
    if not _TOKEN.fullmatch(job_epoch):
        raise wire.BadMessage(f"{job_epoch[:80]!r} is not the token of an epoch")


def _refuse_strangers(path: Path) -> None:
    try:
        check_owner(path)
    except FileNotFoundError:
        return  # Not there yet.
    except PermissionError:
        raise BadEndpoint(f"{path} is not open to this user: set agent.controller") from None


# --- To a supervisor -------------------------------------------------------------------------------


_RETRY_S_MIN: Final = 0.02
_RETRY_S_MAX: Final = 1.0
_UNSENT_BYTES_MAX: Final = 256 * 1024
NOT_CONNECTED: Final = "its supervisor is not connected"


class Line:
    def __init__(
        self,
        key: remembered.AttemptKey,
        folder: Path,
        *,
        post: Callable[[edge.AnyAgentEvent], None],
        answer: Callable[[wire.StreamReply], None],
        log: Callable[[str], None],
    ) -> None:
        """Prepares the line to an attempt's supervisor. `answer`: takes what it answers about streams."""
        self._key = key
        self._answer = answer
        self._path = folder / records.CONTROL
        self._post = post
        self._log = log
        self._writer: asyncio.StreamWriter | None = None
        self._asked: set[int] = set()
        """Questions about streams that the supervisor has not answered."""
        self._closed = False

    async def run(self) -> None:
        """Connect, listen, connect again, until closed."""
        wait_s = _RETRY_S_MIN
        while not self._closed:
            try:
                reader, writer = await channel.connect(self._path)
            except OSError:  # Not there yet, or not any more.
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_S_MAX)
                continue
            wait_s = _RETRY_S_MIN
            await self._listen(reader, writer)
            await asyncio.sleep(wait_s)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        job_id, attempt = self._key
        self._writer = writer
        self._post(edge.Connected(job_id=job_id, attempt=attempt))
        try:
            while (frame := await channel.read_frame(reader)) is not None:
                self._take(wire.decode(frame, channel.FromSupervisor))
        except wire.BadMessage as error:
            self._log(f"job {job_id} attempt {attempt}: bad message from its supervisor: {error}")
        finally:
            self._writer = None
            writer.close()
            for request in self._asked:
                self._answer(
                    wire.StreamReply(request=request, told=wire.StreamTold(state="away", why=NOT_CONNECTED))
                )
            self._asked.clear()
            self._post(edge.Disconnected(job_id=job_id, attempt=attempt))

    def _take(self, message: channel.FromSupervisor) -> None:
        match message:
            case channel.StatusNow(status=status) if (status.job_id, status.attempt) == self._key:
                self._post(edge.StatusCame(status=status))
            case channel.EndedNow():
                result = files.read_or_put_aside(
                    self._path.with_name(records.RESULT), records.Result, self._log
                )
                if result is not None:
                    self._post(edge.EndCame(result=result))
            case channel.GangOut(to_host=to_host, payload=payload):
                said = edge.GangMessageCame(
                    job_id=self._key[0], attempt=self._key[1], to_host=to_host, payload=payload
                )
                self._post(said)
            case wire.StreamReply(request=request):
                self._asked.discard(request)
                self._answer(message)
            case _:
                self._log(f"{self._path}: a message about another attempt was dropped")

    def tell(self, message: channel.ToSupervisor) -> bool:
        """Whether it is on its way: what is too large for a frame is dropped, and said."""
        writer = self._writer
        if writer is None:
            return False
        if writer.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            writer.transport.abort()
            return False
        try:
            channel.write_message(writer, message)
        except wire.BadMessage as error:
            self._log(f"job {self._key[0]}: {type(message).__name__} cannot be passed on: {error}")
            return False
        except ConnectionError:
            return False
        return True

    def ask(self, question: wire.AskStream) -> bool:
        """Whether the question was passed on: not to a supervisor that is not there or reads slowly."""
        writer = self._writer
        if writer is None or writer.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX // 2:
            return False
        self._asked.add(question.request)
        if not self.tell(question):
            self._asked.discard(question.request)
            return False
        return True

    def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()
