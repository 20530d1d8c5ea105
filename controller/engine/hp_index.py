"""How many devices jobs of class hp ask for, by device type and organisation: kept up to date per change.
A part of a device counts as such.

Rule: an entry leaves as it was put in, whatever has happened to the job since. A job that waits counts under
the type it asks for (empty: any), one that is placed under the type it has. Implements `HpDemand`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from cotenant.controller.domain import ON_DEVICES, QUEUED, RESERVED, Device, DeviceId, Job

PLACES: Final = 6
"""Parts of devices are rounded to this, so that adding and removing one leaves exactly 0."""


class HpIndex:
    def __init__(self, devices: Mapping[DeviceId, Device]) -> None:
        self.waiting = defaultdict[str, float](int)
        self.placed = defaultdict[str, float](int)
        self.by_organisation = defaultdict[tuple[str, str], float](int)
        self._devices = devices
        self._at: dict[int, tuple[bool, str, str, float]] = {}
        """By job: whether it is placed, type, organisation, devices."""

    def put(self, job: Job) -> None:
        """Counts the job where its phase says, and no longer where it counted before."""
        self.remove(job)
        phase, placement = job.phase, job.placement
        if phase is QUEUED:
            self._count(job.number, (False, job.spec.gpu_type, job.spec.organisation, job.spec.size), 1)
        elif placement is not None and (phase is RESERVED or phase in ON_DEVICES):
            first = self._devices.get(placement.devices[0])
            type = job.spec.gpu_type if first is None else first.type
            self._count(job.number, (True, type, job.spec.organisation, placement.size), 1)

    def remove(self, job: Job) -> None:
        if job.number in self._at:
            self._count(job.number, self._at[job.number], -1)

    def _count(self, number: int, entry: tuple[bool, str, str, float], sign: int) -> None:
        is_placed, type, organisation, size = entry
        side = self.placed if is_placed else self.waiting
        if sign > 0:
            self._at[number] = entry
        else:
            del self._at[number]
        side[type] = round(side[type] + sign * size, PLACES)
        if not side[type]:
            del side[type]
        theirs = round(self.by_organisation[type, organisation] + sign * size, PLACES)
        self.by_organisation[type, organisation] = theirs
        if not self.by_organisation[type, organisation]:
            del self.by_organisation[type, organisation]

    def check(self, jobs: Iterable[Job]) -> None:
        """Asserts that a fresh count gives the same; types aside, for devices may have gone meanwhile."""
        hp = [job for job in jobs if job.spec.job_class == "hp"]
        waiting = sum(job.spec.size for job in hp if job.phase is QUEUED)
        placed = sum(j.placement.size for j in hp if j.placement is not None)
        counted = sum(self.waiting.values()), sum(self.placed.values()), sum(self.by_organisation.values())
        pairs = zip(counted, (waiting, placed, waiting + placed), strict=True)
        assert all(abs(one - other) < 1e-3 for one, other in pairs), "hp devices"
