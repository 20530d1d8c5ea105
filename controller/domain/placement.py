"""Where a job is: its devices, and the checkpoints that it can go on from."""

from __future__ import annotations

import msgspec

from cotenant.controller.domain.ids import AttemptNo, DeviceId, JobId
from cotenant.controller.domain.reasons import Reason


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Job -> devices, sub-batch and accumulation steps, with the reason."""

    devices: tuple[DeviceId, ...]
    """In rank order; devices of one host stand together."""
    accumulation_steps: int = 1
    sub_batch: int | None = None
    memory_mib: int | None = None
    """Planned peak per device; the cap when sharing. Of a guest of unknown need: what its co-tenants leave.
    None: unknown, so the device is not shared."""
    slowdown: float = 1.0
    """Expected step time / step time alone at the whole batch, at the moment of placing."""
    capped: bool = False
    """It may not use more memory than planned, although it started alone, because a newcomer may share its
    devices."""
    beside: tuple[JobId, ...] = ()
    """Those it was placed beside: its memory is capped for their sake, even when they have left."""
    fraction: float = 1.0
    """Below 1: of its one device it holds this part, and others may hold the rest (`domain/tenancy.py`)."""
    reason: Reason

    @property
    def size(self) -> float:
        """Devices that it holds; below 1 for a part of one."""
        return len(self.devices) if self.fraction == 1.0 else self.fraction


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a durable checkpoint: directory `a<attempt>-s<step>`, visible to the hosts of one
    domain."""

    attempt: AttemptNo
    step: int
    domain: str
    exact: bool = True
    proven: int = 0
    """So many steps after a resume from it came out as they had before; 0: nobody has shown that."""
