"""What an agent and a supervisor say to each other over `control.sock`.

Frames are length-prefixed msgpack (`wire.codec`). The supervisor sends `StatusNow` at once to every
new connection and after every change (at most ten a second), then `EndedNow`. A connection may break
at any time: nothing is lost, since the next one starts with the whole status, and `result.json` stays.
"""

from __future__ import annotations

import msgspec

from cotenant.agent.ipc.records import Status
from cotenant.controller.domain import HostId


class ChannelMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m"):
    """Base of both directions."""


# --- Agent -> supervisor ---------------------------------------------------------------------------


class StopNow(ChannelMessage, frozen=True, kw_only=True, tag="stop"):
    """End: after a save at an agreed step if `save`, at the latest after `deadline_s`. May be repeated;
    a later one without `save` overrides."""

    save: bool
    deadline_s: float
    reason: str


class SaveNow(ChannelMessage, frozen=True, kw_only=True, tag="save"):
    """Agree on a step, save there, go on."""


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


ToSupervisor = StopNow | SaveNow | LeaseNow | CoTenantsChanged | GangIn
FromSupervisor = StatusNow | EndedNow | GangOut
