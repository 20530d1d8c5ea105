"""Where a guest could go: devices with one tenant that may take another, by tenant and host.

Rule: looked up once for a decision and kept up with it, so that trying many jobs costs what is shareable,
not what the cluster holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cotenant.controller.domain.cluster import HostState
from cotenant.controller.domain.ids import DeviceId, HostId, JobId
from cotenant.controller.domain.job import Job, Phase
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import Shape, View, suits

Place = tuple[HostId, str]
"""A host and one type of its devices: gangs that share stay on one."""


class Room(NamedTuple):
    """What one tenant leaves at one place."""

    partner: Job
    place: Place
    devices: tuple[DeviceId, ...]
    left_mib: int
    """Beside the tenant, on the device that has least."""
    one_uid: bool
    """Under MPS both tenants must be one user's."""

    def admits(self, view: View, job: Job, shape: Shape) -> bool:
        if shape.gpu_type not in ("", self.place[1]) or not suits(view.hosts[self.place[0]], shape):
            return False
        return not self.one_uid or job.spec.launch.uid == self.partner.spec.launch.uid


class Rooms:
    """All rooms of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._view = plan.view
        self._devices: dict[tuple[JobId, Place], list[DeviceId]] = {}
        self.closed: Reason | None = None
        """Why somebody who has a device to himself shares it with nobody."""
        for device_id in plan.view.shareable():
            staying = plan.staying(device_id)
            if len(staying) == 1:
                self._add(device_id, self._view.jobs[staying[0]])

    def _add(self, device_id: DeviceId, partner: Job) -> None:
        device = self._view.devices[device_id]
        if partner.phase not in (Phase.RUNNING, Phase.LOADING):
            return
        if self._view.hosts[device.host_id].state is not HostState.OK:
            return
        if partner.spec.share == "never":
            self.closed = because("sharing-unknown", partner.job_id, "it was submitted with --share never")
        elif self._view.planned_mib(partner) is None:
            why = f"the memory that job {partner.job_id} needs is not known"
            self.closed = because("sharing-unknown", partner.job_id, why)
        else:
            place = (device.host_id, device.type)
            self._devices.setdefault((partner.job_id, place), []).append(device_id)

    def __bool__(self) -> bool:
        return bool(self._devices)

    def __iter__(self) -> Iterator[Room]:
        devices = self._view.devices
        for (job_id, place), here in self._devices.items():
            partner = self._view.jobs[job_id]
            planned = self._view.planned_mib(partner)
            assert planned is not None
            yield Room(
                partner=partner,
                place=place,
                devices=tuple(here),
                left_mib=min(devices[d].usable_mib for d in here) - planned,
                one_uid=any(devices[d].sharing == "mps" for d in here),
            )

    def take(self, taken: tuple[DeviceId, ...]) -> None:
        """A guest has moved in."""
        for key, here in list(self._devices.items()):
            left = [d for d in here if d not in taken]
            if left:
                self._devices[key] = left
            else:
                del self._devices[key]
