"""Late jobs, whose turn it is (`engine/stages/lateness.py`): whom they may preempt, and what is kept for
those that cannot start.

Rule: a job starts on devices that are kept for a late one only if late ones may preempt it, or its length is
known and it ends before the late one could start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cotenant.controller.domain import RUNNING, DeviceId, Job
from cotenant.controller.planning import LENT, Plan, is_possible
from cotenant.controller.policies.toolkit import reservations
from cotenant.controller.policies.toolkit.victims import longest_first, may_give_way

Spares = Callable[[Job], bool]
"""Whether a policy never preempts a job although it could resume."""


def spare_nobody(_: Job) -> bool:
    """Every job that can resume may be preempted."""
    return False


def stay_for_no_time(_: Job) -> float:
    """Every job that can resume may start where somebody will take its devices at once."""
    return 0.0


class Spared(NamedTuple):
    """Whom a policy leaves alone."""

    always: Spares = spare_nobody
    """Jobs that not even a late one preempts."""
    if_possible: Spares = spare_nobody
    """Jobs that a late one preempts only where all others are not enough."""
    stays_s: Callable[[Job], float] = stay_for_no_time
    """How long, in seconds, a job that can resume must keep the free devices that it starts on."""


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
        if job.phase is RUNNING and may_give_way(plan, job, newcomer) and not spares(job):
            yield job


class KeptForLate:
    """Devices that are kept for late jobs: a job starts there only if it can be preempted, or ends before."""

    def __init__(self, plan: Plan, *, preempts: bool, spared: Spared | None = None) -> None:
        """Keeps nothing yet. `preempts`: late jobs preempt under this policy (`whole_queue.py`)."""
        self._plan, self._preempts, self._spared = plan, preempts, spared or Spared()
        self._kept: list[reservations.Reservation] = []
        self._late: list[Job] = []
        self._devices: set[DeviceId] = set()

    def keep(self, job: Job) -> None:
        """Keep devices for a late job that cannot start now."""
        trial = self._plan.fork()
        for other in not_late(self._plan, job, self._spared.always) if self._preempts else ():
            trial.suppose_left(other)
        for other, kept in zip(self._late, self._kept, strict=True):
            trial.suppose_placed(other, kept.devices)
        found = reservations.reserve(trial, job)
        if found is not None:
            self._late.append(job)
            self._kept.append(found)
            self._devices.update(found.devices)

    def find_free(self, job: Job) -> tuple[DeviceId, ...] | None:
        """Devices for a job that keep no late one waiting longer, and that nobody takes from it too soon."""
        devices, now_s = self._plan.find_free(job), self._plan.view.now_s
        can_leave = self._preempts and job.preemptible and not self._spared.always(job)
        stays_s = self._spared.stays_s(job) if can_leave else 0.0
        if devices is None or (can_leave and not stays_s):
            return devices
        booked = self._list_booked(job, now_s + stays_s) if stays_s else set()
        is_unbooked = booked.isdisjoint(devices)
        if is_unbooked and self._devices.isdisjoint(devices):
            return devices
        is_known = job.known_left_s(now_s) is not None
        ends_s = (
            now_s + stays_s
            if stays_s
            else reservations.end_if_started(job, now_s)
            if is_known
            else reservations.NEVER_S
        )
        here = [kept for kept in self._kept if not set(kept.devices).isdisjoint(devices)]
        if is_unbooked and all(ends_s <= kept.start_s for kept in here):
            return devices
        apart = self._plan.fork()
        for (host_id, type), free in list(apart.view.free.devices.items()):
            taken = [each for each in free if each in self._devices or each in booked]
            if taken:
                apart.suppose_taken(host_id, type, taken)
        return apart.find_free(job)

    def _list_booked(self, job: Job, until_s: float) -> set[DeviceId]:
        """The devices that are reserved for somebody else before then."""
        user = job.spec.user
        return {
            device_id
            for device_id, kept in self._plan.view.kept.items()
            if any(each.user != user and LENT < each.from_s < until_s for each in kept)
        }
