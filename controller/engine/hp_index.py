"""How many devices jobs of class hp ask for, by device type and organisation: kept up to date per change.

Rule: an entry leaves as it was put in, whatever has happened to the job since. A job that waits counts under
the type it asks for (empty: any), one that is placed under the type it has. Implements `HpDemand`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from cotenant.controller.domain import ON_DEVICES, QUEUED, RESERVED, Device, DeviceId, Job


class HpIndex:
    def __init__(self, devices: Mapping[DeviceId, Device]) -> None:
        self.waiting: Counter[str] = Counter()
        self.placed: Counter[str] = Counter()
        self.by_organisation: Counter[tuple[str, str]] = Counter()
        self._devices = devices
        self._at: dict[int, tuple[bool, str, str, int]] = {}
        """By job: whether it is placed, type, organisation, devices."""

    def put(self, job: Job) -> None:
        """Where its phase says; it may stand elsewhere already."""
        self.remove(job)
        phase, placement = job.phase, job.placement
        if phase is QUEUED:
            self._count(job.number, (False, job.spec.gpu_type, job.spec.organisation, job.spec.gpus), 1)
        elif placement is not None and (phase is RESERVED or phase in ON_DEVICES):
            first = self._devices.get(placement.devices[0])
            type = job.spec.gpu_type if first is None else first.type
            self._count(job.number, (True, type, job.spec.organisation, len(placement.devices)), 1)

    def remove(self, job: Job) -> None:
        if job.number in self._at:
            self._count(job.number, self._at[job.number], -1)

    def _count(self, number: int, entry: tuple[bool, str, str, int], sign: int) -> None:
        is_placed, type, organisation, gpus = entry
        side = self.placed if is_placed else self.waiting
        if sign > 0:
            self._at[number] = entry
        else:
            del self._at[number]
        side[type] += sign * gpus
        if not side[type]:
            del side[type]
        self.by_organisation[type, organisation] += sign * gpus
        if not self.by_organisation[type, organisation]:
            del self.by_organisation[type, organisation]

    def check(self, jobs: Iterable[Job]) -> None:
        """Assert that counting anew says the same; types aside, for devices may have gone meanwhile."""
        hp = [job for job in jobs if job.spec.job_class == "hp"]
        waiting = sum(job.spec.gpus for job in hp if job.phase is QUEUED)
        placed = sum(len(j.placement.devices) for j in hp if j.placement is not None)
        assert (waiting, placed) == (sum(self.waiting.values()), sum(self.placed.values())), "hp devices"
        assert sum(self.by_organisation.values()) == waiting + placed, "hp devices by organisation"
