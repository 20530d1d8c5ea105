"""Which devices this agent offers: those whose locks it holds.

Rule: a device that another agent holds is listed as not healthy, with the name of who holds it; it is
offered as soon as its locks are free.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.agent.devices import lock_names
from cotenant.agent.locks import DeviceLocks
from cotenant.controller.domain.cluster import Device

TAKEN: Final = "taken: "
"""How the note of a device begins that another agent holds, in contrast to one that is broken."""


def offered(devices: tuple[Device, ...], locks: DeviceLocks) -> tuple[Device, ...]:
    """The devices, each with what its locks say now. A device that is broken stays as it is."""
    return tuple(_offered(device, locks) for device in devices)


def _offered(device: Device, locks: DeviceLocks) -> Device:
    if not device.healthy and not device.note.startswith(TAKEN):
        return device
    why = locks.take(lock_names(device))
    note = f"{TAKEN}{why}" if why else ""
    return msgspec.structs.replace(device, healthy=not why, note=note)
