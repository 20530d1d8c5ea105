"""A view with only some of the waiting jobs, for a policy that orders the jobs of one class; and what of its
decision counts: the budget of spot jobs, and the actions that keep within it.

Rule: all else is the view's own. A job that was hidden from the policy and is not any more counts as a
newcomer, since the policy was never asked about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cotenant.controller import domain
from cotenant.controller.planning import HoldingsView, Plan, QueueView, SchedulingClass, View


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
    """A view of the cluster for one class of jobs. Implements `View`: all but the queue and the shareable
    devices is the underlying view's own."""

    def __init__(
        self,
        view: View,
        admits: Callable[[domain.Job], bool],
        ends: Callable[[domain.Job], bool],
        unseen: Callable[[domain.Job], bool],
        may_share: Callable[[domain.Job], bool] | None,
    ) -> None:
        """Restricts `view` to one class of jobs. `admits`: which jobs wait here; `ends`: whether no job
        behind this one in its queue waits here; `unseen`: which of the waiting jobs are new to the policy
        though not to the queue; `may_share`: beside which jobs others may be put, None: beside all."""
        self.now_s, self.began_hour, self.jobs = view.now_s, view.began_hour, view.jobs
        self.hosts, self.devices, self.free = view.hosts, view.devices, view.free
        self.running, self.hp, self.chosen = view.running, view.hp, view.chosen
        self.pairs, self.sizes, self.kept = view.pairs, view.sizes, view.kept
        self.resumes, self.is_followed = view.resumes, view.is_followed
        self.queue: QueueView = QueueOfClass(view.queue, admits, ends, unseen)
        self.holdings: HoldingsView = (
            HoldingsForClass(view.holdings, view.jobs, may_share) if may_share is not None else view.holdings
        )


class QueueOfClass:
    """The waiting jobs that are admitted. Implements `QueueView`."""

    def __init__(
        self,
        queue: QueueView,
        admits: Callable[[domain.Job], bool],
        ends: Callable[[domain.Job], bool],
        unseen: Callable[[domain.Job], bool],
    ) -> None:
        self._queue, self._admits, self._ends, self._unseen = queue, admits, ends, unseen
        self._heads: list[domain.Job] | None = None
        self._queues: dict[SchedulingClass, Sequence[domain.Job]] = {}
        self.order_key, self.class_of = queue.order_key, queue.class_of

    def heads(self) -> Iterator[domain.Job]:
        if self._heads is None:
            found = [self._first(head) for head in self._queue.heads()]
            self._heads = sorted((job for job in found if job is not None), key=self.order_key)
        return iter(self._heads)

    def _first(self, head: domain.Job) -> domain.Job | None:
        """The first job of the head's scheduling class that waits here."""
        if self._admits(head):
            return head
        if not self._ends(head):
            for job in self._queue.jobs_of_class(self.class_of(head)):
                if self._admits(job):
                    return job
                if self._ends(job):
                    break
        return None

    def jobs_of_class(self, scheduling_class: SchedulingClass) -> Sequence[domain.Job]:
        if scheduling_class not in self._queues:
            waiting = self._queue.jobs_of_class(scheduling_class)
            self._queues[scheduling_class] = [job for job in waiting if self._admits(job)]
        return self._queues[scheduling_class]

    def jobs_in_order(self) -> Iterator[domain.Job]:
        return filter(self._admits, self._queue.jobs_in_order())

    def newcomers(self) -> Sequence[domain.Job]:
        found = {job.number: job for job in self._queue.newcomers() if self._admits(job)}
        for head in self.heads():
            if self._unseen(head):
                found |= {job.number: job for job in self.jobs_of_class(self.class_of(head))}
        return sorted(found.values(), key=self.order_key)

    def __len__(self) -> int:
        """Returns an upper bound of the jobs in the queue: an exact count would look at each job."""
        return len(self._queue) if next(self.heads(), None) is not None else 0


class HoldingsForClass:
    """The holdings, which say who has which device, with only some devices shareable. Implements
    `HoldingsView`."""

    def __init__(
        self,
        holdings: HoldingsView,
        jobs: Mapping[domain.JobId, domain.Job],
        may_share: Callable[[domain.Job], bool],
    ) -> None:
        self._holdings, self._jobs, self._may_share = holdings, jobs, may_share
        self.tenants, self.claimed_by = holdings.tenants, holdings.claimed_by
        self.claimants, self.asking_on = holdings.claimants, holdings.asking_on

    def shareable(self) -> Sequence[domain.DeviceId]:
        return [d for d in self._holdings.shareable() if all(map(self._is_shared_with, self.tenants(d)))]

    def _is_shared_with(self, job_id: domain.JobId) -> bool:
        return self._may_share(self._jobs[job_id])


def widest(budgets: dict[str, Budget]) -> int:
    return max((budget.gpus for budget in budgets.values()), default=0)


def concerned_jobs(actions: Sequence[domain.AnyAction]) -> set[domain.JobId]:
    """Those that the actions start or defer."""
    return {each.job_id for each in actions if isinstance(each, domain.Place | domain.Share | domain.Defer)}


def replay_actions(view: View, actions: Sequence[domain.AnyAction]) -> Plan:
    """The cluster as it would be after these actions, as a plan without actions of its own."""
    plan = Plan(view)
    for action in actions:
        if isinstance(action, domain.Preempt):
            plan.suppose_left(view.jobs[action.job_id])
    for action in actions:
        if isinstance(action, domain.Place | domain.Share):
            plan.suppose_placed(view.jobs[action.job_id], action.devices)
    return plan


def split_by_budget(
    view: View, actions: Sequence[domain.AnyAction], budgets: dict[str, Budget]
) -> tuple[tuple[domain.AnyAction, ...], set[domain.JobId]]:
    """The actions that keep within the budget, and the jobs whose free devices exceed what those before them
    have left of it; never aged ones."""
    left = {type: budget.gpus for type, budget in budgets.items()}
    excess: set[domain.JobId] = set()
    for action in actions:
        if not isinstance(action, domain.Place | domain.Share):
            continue
        taken = [d for d in action.devices if not view.holdings.tenants(d)]
        type = view.devices[action.devices[0]].type
        if len(taken) > left.get(type, 0) and not view.jobs[action.job_id].aged:
            excess.add(action.job_id)
        else:
            left[type] = left.get(type, 0) - len(taken)
    return tuple(each for each in actions if served_job(each) not in excess), excess


def served_job(action: domain.AnyAction) -> domain.JobId | None:
    """The job that an action starts, defers or makes room for, if any."""
    match action:
        case domain.Place() | domain.Share() | domain.Defer():
            return action.job_id
        case domain.Preempt():
            return action.for_job
        case _:
            return None
