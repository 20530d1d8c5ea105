"""Whether the hosts of a placement have the cores and the main memory that its job asks for.

Rule: the engine asks when a policy decides, and does not record what is refused. It carries out a recorded
decision as it stands, since journals hold some from before these limits existed.

Rule: jobs that leave count until their processes on the host are gone, unless the placement waits for these
anyway because they hold its devices there.
"""

from __future__ import annotations

from collections.abc import Iterable

from cotenant.controller.domain import (
    LEAVING,
    DeviceId,
    HostId,
    HostRoom,
    JobId,
    Place,
    Reason,
    Resize,
    Share,
    because,
    room_left,
)
from cotenant.controller.engine.ledger import Ledger


def exceeds_hosts(ledger: Ledger, action: Place | Share | Resize) -> Reason | None:
    """Why the hosts do not have what the job asks for; None if they do, or nothing is asked."""
    if action.job_id not in ledger.jobs:
        return None
    job = ledger.jobs[action.job_id]
    spec = job.spec
    if not (spec.cpus or spec.host_memory_mib):
        return None
    by_host: dict[HostId, list[DeviceId]] = {}
    for device_id in action.devices:
        by_host.setdefault(ledger.holdings.host_of(device_id), []).append(device_id)
    for host_id, devices in by_host.items():
        if host_id not in ledger.hosts:
            continue  # It is refused for that.
        tenants = {job_id for device_id in devices for job_id in ledger.tenants(device_id)}
        waited_for = {job_id for job_id in tenants if ledger.jobs[job_id].phase in LEAVING}
        room = _room(ledger, host_id, {*waited_for, job.job_id})
        if not room.holds(spec.cpus, spec.host_memory_mib):
            return because("refused-host-room", f"job {job.job_id}", host_id, *left_over(room))
    return None


def _room(ledger: Ledger, host_id: HostId, without: Iterable[JobId]) -> HostRoom:
    gone = set(without)
    here = (each for each in ledger.asking_on(host_id) if each.job_id not in gone)
    return room_left(ledger.hosts[host_id].report, here)


def left_over(room: HostRoom) -> tuple[int, str]:
    """The room on a host, in words."""
    return max(0, room.cpus), "any" if room.memory_mib is None else f"{max(0, room.memory_mib)} MiB of"
