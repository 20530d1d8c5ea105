"""What an agent and a supervisor say to each other over `control.sock`, and its frames.

The supervisor sends `StatusNow` at once to every new connection and after every change (at most ten a
second), then `EndedNow`. A connection may break at any time: nothing is lost, since the next one starts with
the whole status, and `result.json` stays.

Rule: a frame is four bytes of length, then msgpack (`wire.codec`). The length is checked before anything is
read or kept, so that a peer can make us hold at most `FRAME_BYTES_MAX`. A bad frame raises `BadMessage`; its
connection is of no use any more and is closed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cotenant.agent.ipc.records import Status
from cotenant.controller.domain import AttemptNo, HostId, JobId
from cotenant.controller.wire import AskStream, BadMessage, StreamReply, decode, encode

if TYPE_CHECKING:  # A supervisor has no event loop and should not pay for one.
    import asyncio


class ChannelMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m"):
    """Base of both directions."""


# --- Agent -> supervisor ---------------------------------------------------------------------------


class StopNow(ChannelMessage, frozen=True, kw_only=True, tag="stop"):
    """An order to end the attempt: after a save at an agreed step if `save`, at the latest after
    `deadline_s`. May be repeated; a later message without `save` overrides."""

    save: bool
    deadline_s: float
    reason: str
    interrupt: bool = False
    """Without `save`: its processes get SIGINT now, and are ended after `deadline_s`."""
    finish: bool = False
    """With `save`: ranks whose loop knows us leave it and go on with their script."""


class SaveNow(ChannelMessage, frozen=True, kw_only=True, tag="save"):
    """Agree on a step, save there, go on."""


class LimitNow(ChannelMessage, frozen=True, kw_only=True, tag="limit"):
    """The attempt's time limit, counted from its start, is another than its order says; infinite: it has
    none. May be repeated."""

    allowed_s: float


class LeaseNow(ChannelMessage, frozen=True, kw_only=True, tag="lease"):
    """The lease has this long to go; None = no lease. Without another one the supervisor saves at 60 %
    and stops its ranks at 80 % of the full lease."""

    left_s: float | None
    full_s: float | None


class CoTenantsChanged(ChannelMessage, frozen=True, kw_only=True, tag="company"):
    """Whether the job has this host's part of its devices to itself."""

    alone: bool
    room_mib: int | None = None
    """For a job that started without a limit: what co-tenants leave of each device to each of its
    processes."""


class PaceNow(ChannelMessage, frozen=True, kw_only=True, tag="pace"):
    """When this host's ranks may train, so that a co-tenant keeps its bound; repeated, since it counts for a
    while only."""

    pace: float
    """The part of the time."""
    window: float = 1.0
    phase: float = 0.0
    """Micro-batches begin in this part of the co-tenant's step, from this place in it on; 1: anywhere."""
    beside: tuple[JobId, AttemptNo] | None = None
    step_s: float = 0.0
    """The co-tenant, and its step time alone."""


class TellNow(ChannelMessage, frozen=True, kw_only=True, tag="tell"):
    """A line for the job's user, into its log; it may be lost."""

    text: str


class GangIn(ChannelMessage, frozen=True, kw_only=True, tag="gang-in"):
    from_host: HostId
    payload: bytes


# --- Supervisor -> agent ---------------------------------------------------------------------------


class StatusNow(ChannelMessage, frozen=True, kw_only=True, tag="status"):
    status: Status


class EndedNow(ChannelMessage, frozen=True, kw_only=True, tag="ended"):
    """`result.json` is on disk, and says how."""


class GangOut(ChannelMessage, frozen=True, kw_only=True, tag="gang-out"):
    to_host: HostId
    payload: bytes


ToSupervisor = (
    StopNow | SaveNow | LimitNow | LeaseNow | CoTenantsChanged | PaceNow | TellNow | GangIn | AskStream
)
FromSupervisor = StatusNow | EndedNow | GangOut | StreamReply


# --- Frames ----------------------------------------------------------------------------------------


FRAME_BYTES_MAX: Final = 1024 * 1024
_LENGTH: Final = struct.Struct("!I")


def frame_message(message: object) -> bytes:
    """The bytes of one message on the stream."""
    body = encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise BadMessage(f"frame of {len(body)} bytes is over the limit of {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


class Deframer:
    """Collects a stream's bytes and gives back whole messages."""

    def __init__(self, into: Any) -> None:
        self._into = into
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are complete now.

        Raises:
            BadMessage: an oversized or undecodable frame.
        """
        self._buffer += data
        messages = []
        while (body := self._next()) is not None:
            messages.append(decode(body, self._into))
        return messages

    def _next(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _check_length(_LENGTH.unpack_from(self._buffer)[0])
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return body


def _check_length(length: int) -> int:
    if length > FRAME_BYTES_MAX:
        raise BadMessage(f"frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")
    return length


# --- asyncio ---------------------------------------------------------------------------------------


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next message as bytes; None at the end of the stream, or when it breaks.

    Raises:
        BadMessage: an oversized frame.
    """
    try:
        length = _check_length(_LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0])
        return await reader.readexactly(length)
    except (EOFError, ConnectionError):  # IncompleteReadError is an EOFError.
        return None


def write_message(writer: asyncio.StreamWriter, message: object) -> None:
    writer.write(frame_message(message))


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a Unix socket, however long its path is.

    Raises:
        OSError: no process listens there.
    """
    import asyncio

    with short_address(path) as address:
        return await asyncio.open_unix_connection(address)


# --- Addresses -------------------------------------------------------------------------------------


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address for bind or connect that fits the kernel's 107 bytes: by way of the folder's descriptor."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
