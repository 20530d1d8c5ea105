"""Cores and main memory of hosts: who asks for how much of them, and whether a gang finds it.

Rule: what a job asks for counts once on each host of its gang, from the command that starts it until its last
process there is gone; a job that asks for nothing counts as nothing. A host that does not say how much
memory it has limits none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cotenant.controller.domain.cluster import HostReport
from cotenant.controller.domain.job import Job, JobSpec


class HostRoom(NamedTuple):
    """On one host."""

    cpus: int
    memory_mib: int | None
    """None: not known, and not limited."""

    def holds(self, cpus: int, memory_mib: int) -> bool:
        """Whether a gang that asks for so much on each of its hosts finds it here."""
        return cpus <= self.cpus and (self.memory_mib is None or memory_mib <= self.memory_mib)


def asks_hosts(spec: JobSpec) -> bool:
    """Whether it asks for any cores or main memory of its hosts."""
    return spec.cpus > 0 or spec.host_memory_mib > 0


def room_left(report: HostReport, jobs: Iterable[Job]) -> HostRoom:
    """What the jobs leave of a host's cores and memory; below 0 if it has less than when they started."""
    cpus, memory_mib = report.cpus, report.memory_mib
    for job in jobs:
        cpus -= job.spec.cpus
        memory_mib -= job.spec.host_memory_mib
    return HostRoom(cpus, memory_mib if report.memory_mib else None)
