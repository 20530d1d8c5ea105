"""Whether an attempt's processes are clients of the daemons that they were told to use.

Rule: a client whose connection fails runs without MPS and says nothing, so an attempt counts as attached
only when a client that the daemon lists carries the attempt's own socket path in its environment. Asked
after the first step: before, there may be no CUDA context.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePosixPath

import msgspec

from cotenant.agent.daemon.core.memory import Key
from cotenant.agent.ipc.records import Order
from cotenant.controller.wire.job import ENV_SOCKET
from cotenant.mps import process
from cotenant.mps.channel import ChannelError, ControlChannel, Incomplete, Rejected, client_list, server_list
from cotenant.mps.process import CONTROL

LOOKS_MAX = 5
"""After this many looks it is said as it is."""


class Attachment(Enum):
    ATTACHED = "attached"
    ELSEWHERE = "a daemon that it was told to use does not have it as a client"
    UNKNOWN = "a daemon that it was told to use could not be asked"


class AttachedClient(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that should be the client of these daemons."""

    key: Key
    socket: str
    """What its processes have in COTENANT_SOCKET: unique on the machine, unlike the job's number."""
    pipe_directories: tuple[str, ...]
    workers: int = 1
    """How many of its workers each of these daemons serves."""


class FoundClient(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemons said of an attempt."""

    attachment: Attachment
    processes: int = 0
    """With how many processes a worker is a client (the most that a daemon says); 0: not attached."""


def client_of(order: Order, socket: str) -> AttachedClient | None:
    """None: it was not told to be one."""
    directories = tuple(dict.fromkeys(each.pipe_directory for each in order.mps))
    if not directories:
        return None
    workers = sum(len(member.devices) for member in order.gang if member.host_id == order.host_id)
    return AttachedClient(
        key=(order.job_id, order.attempt),
        socket=socket,
        pipe_directories=directories,
        workers=max(1, workers // len(directories)),
    )


def look_for(client: AttachedClient, program: str = CONTROL) -> FoundClient:
    """Asks each daemon; blocks for a few questions' time."""
    try:
        listed = [_sockets(directory, program)[client.socket] for directory in client.pipe_directories]
    except (ChannelError, Incomplete, Rejected):
        return FoundClient(attachment=Attachment.UNKNOWN)
    if not all(listed):
        return FoundClient(attachment=Attachment.ELSEWHERE)
    return FoundClient(attachment=Attachment.ATTACHED, processes=math.ceil(max(listed) / client.workers))


def verdict(looks: int, seen: Attachment) -> str | None:
    """What to say of it, for the user, after so many looks; empty: it is attached; None: look again."""
    if seen is Attachment.ATTACHED:
        return ""
    if looks < LOOKS_MAX:
        return None
    if seen is Attachment.ELSEWHERE:
        return (
            "MPS: it was told to attach to the MPS daemon of its device and did not, so it time-slices with "
            "whoever shares the device, without the limits of a client"
        )
    return "MPS: whether it attached to the MPS daemon of its device could not be found out"


def _sockets(pipe_directory: str, program: str) -> Counter[str]:
    """How many clients of a daemon have which COTENANT_SOCKET."""
    channel = ControlChannel(pipe_directory=PurePosixPath(pipe_directory), program=program)
    found: Counter[str] = Counter()
    for server in server_list(channel):
        for pid in client_list(channel, server):
            environment: Mapping[str, str] = process.environment_of(pid) or {}
            found[environment.get(ENV_SOCKET, "")] += 1
    return found
