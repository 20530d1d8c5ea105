"""A view with only some of the waiting jobs, for a policy that orders the jobs of one class; and what of its
decision counts: the budget of spot jobs, and the actions that keep within it.

Rule: all else is the view's own. A job that was hidden from the policy and is not any more counts as a
newcomer, since the policy was never asked about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cotenant.controller.domain import (
    AnyAction,
    Defer,
    Device,
    DeviceId,
    Host,
    HostId,
    Job,
    JobId,
    Place,
    Preempt,
    Share,
)
from cotenant.controller.planning import FreeHosts, HpDemand, Plan, SchedulingClass, View


class Budget(NamedTuple):
    """What more spot jobs may take of one type, and why."""

    gpus: int
    quota: int
    inventory: int
    """paper: f(p, H). rise: what is free."""
    waiting: int
    """Devices that waiting hp jobs ask for."""
    rise: int


class ClassView:
    """Implements `View`."""

    def __init__(
        self,
        view: View,
        admits: Callable[[Job], bool],
        ends: Callable[[Job], bool],
        unseen: Callable[[Job], bool],
        may_share: Callable[[Job], bool],
    ) -> None:
        """`admits`: which jobs wait here; `ends`: whether none does behind this one in its queue; `unseen`:
        which of them are new to the policy though not to the queue; `may_share`: beside which jobs others may
        be put."""
        self._view, self._admits, self._ends = view, admits, ends
        self._unseen, self._may_share = unseen, may_share
        self._heads: list[Job] | None = None
        self._queues: dict[SchedulingClass, Sequence[Job]] = {}
        self.order_key, self.scheduling_class = view.order_key, view.scheduling_class
        self.on_devices, self.running, self.loading = view.on_devices, view.running, view.loading
        self.leaving, self.paced, self.tenants = view.leaving, view.paced, view.tenants
        self.claimed_by, self.claimants, self.planned_mib = view.claimed_by, view.claimants, view.planned_mib
        self.interference, self.interferences = view.interference, view.interferences
        self.foretold = view.foretold
        self.largest_placement, self.largest_now = view.largest_placement, view.largest_now
        self.largest_host, self.asking_on = view.largest_host, view.asking_on

    @property
    def now_s(self) -> float:
        return self._view.now_s

    @property
    def began_hour(self) -> int:
        return self._view.began_hour

    @property
    def jobs(self) -> Mapping[JobId, Job]:
        return self._view.jobs

    @property
    def hosts(self) -> Mapping[HostId, Host]:
        return self._view.hosts

    @property
    def devices(self) -> Mapping[DeviceId, Device]:
        return self._view.devices

    @property
    def free(self) -> FreeHosts:
        return self._view.free

    @property
    def hp(self) -> HpDemand:
        return self._view.hp

    @property
    def chosen(self) -> Mapping[JobId, tuple[DeviceId, ...]]:
        return self._view.chosen

    def heads(self) -> Iterator[Job]:
        if self._heads is None:
            found = [self._first(head) for head in self._view.heads()]
            self._heads = sorted((job for job in found if job is not None), key=self.order_key)
        return iter(self._heads)

    def _first(self, head: Job) -> Job | None:
        """The first job of the head's scheduling class that waits here."""
        if self._admits(head):
            return head
        if not self._ends(head):
            for job in self._view.queue(self._view.scheduling_class(head)):
                if self._admits(job):
                    return job
                if self._ends(job):
                    break
        return None

    def queue(self, scheduling_class: SchedulingClass) -> Sequence[Job]:
        if scheduling_class not in self._queues:
            waiting = self._view.queue(scheduling_class)
            self._queues[scheduling_class] = [job for job in waiting if self._admits(job)]
        return self._queues[scheduling_class]

    def queued(self) -> Iterator[Job]:
        return filter(self._admits, self._view.queued())

    def newcomers(self) -> Sequence[Job]:
        found = {job.number: job for job in self._view.newcomers() if self._admits(job)}
        for head in self.heads():
            if self._unseen(head):
                found |= {job.number: job for job in self.queue(self.scheduling_class(head))}
        return sorted(found.values(), key=self.order_key)

    def queued_count(self) -> int:
        """An upper bound: an exact count would look at each job."""
        return self._view.queued_count() if next(self.heads(), None) is not None else 0

    def shareable(self) -> Sequence[DeviceId]:
        view = self._view
        return [d for d in view.shareable() if all(map(self._is_shared_with, view.tenants(d)))]

    def _is_shared_with(self, job_id: JobId) -> bool:
        return self._may_share(self._view.jobs[job_id])


def widest(budgets: dict[str, Budget]) -> int:
    return max((budget.gpus for budget in budgets.values()), default=0)


def concerned(actions: Sequence[AnyAction]) -> list[JobId]:
    return [each.job_id for each in actions if isinstance(each, Place | Share | Defer)]


def is_deferred(job_id: JobId, actions: Sequence[AnyAction]) -> bool:
    return any(isinstance(each, Defer) and each.job_id == job_id for each in actions)


def replayed(view: View, actions: Sequence[AnyAction]) -> Plan:
    """The cluster as it would be after these actions, as a plan without actions of its own."""
    plan = Plan(view)
    for action in actions:
        if isinstance(action, Preempt):
            plan.suppose_left(view.jobs[action.job_id])
    for action in actions:
        if isinstance(action, Place | Share):
            plan.suppose_placed(view.jobs[action.job_id], action.devices)
    return plan


def beyond(view: View, actions: Sequence[AnyAction], budgets: dict[str, Budget]) -> set[JobId]:
    """Jobs whose free devices exceed the budget, given the jobs before them; never aged ones."""
    left = {type: budget.gpus for type, budget in budgets.items()}
    excess: set[JobId] = set()
    for action in actions:
        if not isinstance(action, Place | Share):
            continue
        taken = [d for d in action.devices if not view.tenants(d)]
        type = view.devices[action.devices[0]].type
        if len(taken) > left.get(type, 0) and not view.jobs[action.job_id].aged:
            excess.add(action.job_id)
        else:
            left[type] = left.get(type, 0) - len(taken)
    return excess


def without(actions: Sequence[AnyAction], job_ids: set[JobId]) -> tuple[AnyAction, ...]:
    """What remains when these jobs are not started."""
    return tuple(
        each
        for each in actions
        if not (isinstance(each, Place | Share | Defer) and each.job_id in job_ids)
        and not (isinstance(each, Preempt) and each.for_job in job_ids)
    )
