"""Which devices this agent offers: those whose locks it holds, and nothing is known against.

Rule: a device that another agent holds is listed as not healthy, with the name of who holds it; it is
offered as soon as its locks are free. What is known of a GPU (`health.py`) counts more than its locks: a
device that is broken is broken, whoever holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cotenant.agent.gpus.conditions import DeviceCondition
from cotenant.agent.host.devices import lock_names
from cotenant.agent.host.locks import DeviceLocks
from cotenant.controller.domain.cluster import Device

TENANTS_BY_MPS: Final = 2
TAKEN: Final = "taken: "
"""How the note of a device begins that another agent holds, in contrast to one that is broken."""


def offered(
    devices: tuple[Device, ...], locks: DeviceLocks, conditions: Mapping[str, DeviceCondition] | None = None
) -> tuple[Device, ...]:
    """The devices, each with what its locks and its condition say now. A device without a condition that is
    broken stays as it is. `conditions`: of GPUs that are watched, by UUID."""
    known = conditions if conditions is not None else {}
    return tuple(_offered(device, locks, known.get(device.local)) for device in devices)


def _offered(device: Device, locks: DeviceLocks, condition: DeviceCondition | None) -> Device:
    if condition is None and not device.healthy and not device.note.startswith(TAKEN):
        return device
    why = locks.take(lock_names(device))  # Also of one that is out: it is ours while it recovers.
    note = f"{TAKEN}{why}" if why else ""
    state = device.state
    if condition is not None:
        state, note = condition.state, condition.note or note
    # In EXCLUSIVE_PROCESS mode the one process that may open it is the MPS server, which serves two.
    tenants = TENANTS_BY_MPS if device.sharing == "mps" else device.max_tenants
    return msgspec.structs.replace(device, state=state, healthy=not note, note=note, max_tenants=tenants)
