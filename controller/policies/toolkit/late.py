"""Late jobs, whose turn it is (`engine/stages/lateness.py`): whom they may preempt, and what is kept for
those that cannot start.

Rule: a job starts on devices that are kept for a late one only if late ones may preempt it, or its length is
known and it ends before the late one could start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cotenant.controller.domain import RUNNING, DeviceId, Job
from cotenant.controller.planning import Plan, is_possible
from cotenant.controller.policies.toolkit.reservations import (
    NEVER_S,
    Reservation,
    end_if_started,
    reserve,
)
from cotenant.controller.policies.toolkit.victims import longest_first

Spares = Callable[[Job], bool]
"""Whether a policy never preempts a job although it could resume."""


def spare_nobody(_: Job) -> bool:
    """Every job that can resume may be preempted."""
    return False


def late_waiting(plan: Plan) -> Job | None:
    """The first late job that gets nothing by this plan, though the hosts could hold it."""
    for job in plan.list_unplaced():
        if not job.aged:
            return None
        if is_possible(plan.view, job):
            return job
    return None


def not_late(plan: Plan, newcomer: Job, spares: Spares) -> Iterator[Job]:
    """Whom a late job may preempt, longest first."""
    for _, job in longest_first(plan.view):
        if (
            job.phase is RUNNING
            and job.preemptible
            and not job.aged
            and job.spec.priority <= newcomer.spec.priority
            and not plan.is_leaving(job.job_id)
            and not spares(job)
        ):
            yield job


class KeptForLate:
    """Devices that are kept for late jobs: a job starts there only if it can be preempted, or ends before."""

    def __init__(self, plan: Plan, *, preempts: bool, spares: Spares = spare_nobody) -> None:
        """Keeps nothing yet. `preempts`: late jobs preempt under this policy (`whole_queue.py`)."""
        self._plan, self._preempts, self._spares = plan, preempts, spares
        self._kept: list[Reservation] = []
        self._late: list[Job] = []
        self._devices: set[DeviceId] = set()

    def keep(self, job: Job) -> None:
        """Keep devices for a late job that cannot start now."""
        trial = self._plan.fork()
        for other in not_late(self._plan, job, self._spares) if self._preempts else ():
            trial.suppose_left(other)
        for other, kept in zip(self._late, self._kept, strict=True):
            trial.suppose_placed(other, kept.devices)
        found = reserve(trial, job)
        if found is not None:
            self._late.append(job)
            self._kept.append(found)
            self._devices.update(found.devices)

    def find_free(self, job: Job) -> tuple[DeviceId, ...] | None:
        """Devices for a job that keep no late one waiting longer."""
        devices = self._plan.find_free(job)
        can_leave = self._preempts and job.preemptible and not self._spares(job)
        if devices is None or self._devices.isdisjoint(devices) or can_leave:
            return devices
        now_s = self._plan.view.now_s
        is_known = job.known_left_s(now_s) is not None
        ends_s = end_if_started(job, now_s) if is_known else NEVER_S
        here = [kept for kept in self._kept if not set(kept.devices).isdisjoint(devices)]
        if all(ends_s <= kept.start_s for kept in here):
            return devices
        apart = self._plan.fork()
        for (host_id, type), free in list(apart.view.free.devices.items()):
            taken = [each for each in free if each in self._devices]
            if taken:
                apart.suppose_taken(host_id, type, taken)
        return apart.find_free(job)
