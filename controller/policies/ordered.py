"""Orders of the queue: fifo by arrival, sjf and srtf by remaining time, ssf and srsf by service, which is
remaining time x GPUs. Under srtf and srsf newcomers preempt; `toolkit/victims.py` says who is one.

Source of service: the two-dimensional view of Tiresias (NSDI '19) section 3.2: a job of eight GPUs takes
eight times as much as one of the same length on one GPU, so the product counts. Source of srtf: Lazer (DAC
'26) section 4.1 with the deferral always 0.

Departs from Tiresias in that `srsf` is to `srtf` what service is to time: only newcomers preempt.

Each decision costs what it starts, plus one look at the head of each queue (one queue per scheduling class):
it does not grow with the backlog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from cotenant.controller.domain import NOTHING, Decision, Job, Length, Phase, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View, why_waiting
from cotenant.controller.policies import toolkit as kit
from cotenant.controller.policies.base import Stateless, Traits, is_quiet
from cotenant.controller.policies.entries import FIRST, ORDER, PREEMPT, PolicyEntry

UNKNOWN_S = 1e12
"""Jobs that say nothing about their length go last under size-based orders."""
QueueKey = Callable[[Job], tuple[float, ...]]


def arrival_key(_: Job) -> tuple[float, ...]:
    """First come, first served."""
    return ()


def remaining_key(job: Job) -> tuple[float, ...]:
    """Shortest expected remaining time first."""
    return (UNKNOWN_S if job.estimate.remaining_s is None else job.estimate.remaining_s,)


def service_key(job: Job) -> tuple[float, ...]:
    """Smallest remaining service first; that of a waiting job does not change."""
    return (UNKNOWN_S if job.estimate.remaining_s is None else job.estimate.remaining_s * job.spec.gpus,)


def service_now(job: Job, now_s: float) -> float:
    """Expected GPU-seconds still to do at `now_s`; `UNKNOWN_S` if the job said nothing of its length."""
    left_s = job.remaining_now_s(now_s)
    return UNKNOWN_S if left_s is None else left_s * job.spec.gpus_min


def _told_service(job: Job, now_s: float) -> Length | float | str:
    return job.told_left(now_s, service_now(job, now_s))


class ByTime(kit.QueueOrder):
    """Running jobs by remaining time, longest first, until the newcomer fits. Devices that jobs are leaving
    do not count: they go to the queue in order."""

    name = "srtf"

    def list_victims(self, plan: Plan, job: Job) -> Iterator[Job]:
        return kit.worth_preempting(plan, job)

    def room(self, plan: Plan, job: Job, behind: Iterator[Job]) -> kit.FreedDevices | None:
        return kit.victims_for(plan, job, behind)

    def why(self, view: View, job: Job, victims: Sequence[Job]) -> kit.Why:
        return kit.why_shorter(view, job, victims)

    def why_last(self, view: View, job: Job) -> Reason | None:
        going = (Phase.RUNNING, Phase.LOADING)
        return kit.why_shortest(
            view, job, [each for each in view.running.jobs_by_end() if each.phase in going]
        )


class ByService(kit.QueueOrder):
    """Jobs with more remaining service, most first."""

    name = "srsf"

    def list_victims(self, plan: Plan, job: Job) -> Iterator[Job]:
        """Sorts those with more only, and mostly there are few."""
        if job.estimate.remaining_s is None:
            return iter(())
        running, mine, now_s = plan.view.running, *service_key(job), plan.view.now_s
        more = [
            (-service, other.number, other)
            for other in chain(running.training, running.loading)
            if mine < (service := service_now(other, now_s)) < UNKNOWN_S
        ]
        more.sort()
        return (other for _, _, other in more if kit.may_give_way(plan, other, job))

    def why(self, view: View, job: Job, victims: Sequence[Job]) -> kit.Why:
        mine = _told_service(job, view.now_s)
        left = {victim.job_id: _told_service(victim, view.now_s) for victim in victims}
        return kit.Why(
            because("preempts-service", mine, kit.least_told(left.values()), ", ".join(left)),
            {job_id: because("preempted-service", job.job_id, mine, more) for job_id, more in left.items()},
        )

    def why_last(self, view: View, job: Job) -> Reason | None:
        if job.estimate.remaining_s is None:
            return None
        return because("outlives-service", _told_service(job, view.now_s))


class Preempting(NamedTuple):
    """Who takes the devices of running jobs, and of which."""

    order: kit.QueueOrder
    newcomers: kit.NewcomerRule | None = None
    """Which newcomers, once what is free is given out; None: every waiting job in its turn, at each event."""


class Ordered(Stateless):
    """Places queued jobs in order on free devices; never shares. The options say who passes a job that does
    not fit. Where newcomers preempt, those that found nothing free take the devices of jobs behind them, none
    past an aged job that waits for its devices; where every job may, the whole queue is rearranged."""

    def __init__(
        self, name: str, key: QueueKey, parameters: kit.OrderParameters, preempting: Preempting | None = None
    ) -> None:
        self.name, self.queue_key, self.parameters, self._preempting = name, key, parameters, preempting
        self.traits = Traits(orders_by_size=name != "fifo", preempts=preempting is not None)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.queue or is_quiet(view, event):
            return NOTHING
        fresh: Sequence[Job] = ()
        if self._preempting is not None:
            if self._preempting.newcomers is None:
                return kit.rearrange_after(Plan(view), self._preempting.order, event).decision()
            fresh = kit.newcomers(view.queue.newcomers(), self._preempting.newcomers)
        if not view.free.everywhere and not fresh:
            return NOTHING
        plan, backfill = Plan(view), self.parameters.backfill
        if view.free.everywhere:
            if backfill == "easy":
                kit.place_ordered(plan, view.queue.jobs_in_order(), self.name, backfill)
            else:
                kit.place_in_order(plan, self.name, strict=backfill == "none")
        if fresh:
            preempt_for_each(plan, fresh, kit.late_waiting(plan), self._preempt)
        return plan.decision()

    def _preempt(self, plan: Plan, newcomer: Job) -> None:
        assert self._preempting is not None
        order = self._preempting.order
        order.make_room(plan, newcomer, order.list_victims(plan, newcomer))

    def explain(self, view: View, job: Job) -> Reason:
        if self._preempting is None:
            return why_waiting(view, job, self.name)
        return self._preempting.order.explain(view, job)


def preempt_for_each(
    plan: Plan, fresh: Iterable[Job], waited_for: Job | None, preempt: Callable[[Plan, Job], None]
) -> None:
    """Asks newcomers that found no devices, in turn; none behind a job for which devices are kept back, since
    what it would free is for that job."""
    order_key = plan.view.queue.order_key
    for newcomer in fresh:
        if plan.actions and plan.is_placed(newcomer.spec.job_id):
            continue
        if waited_for is None or order_key(newcomer) <= order_key(waited_for):
            preempt(plan, newcomer)


def preempting_order(
    name: str, key: QueueKey, order: kit.QueueOrder, parameters: kit.NewcomerParameters
) -> Ordered:
    """An order in which whoever fits passes, and newcomers preempt."""
    return Ordered(name, key, kit.PassingParameters(), Preempting(order, parameters.newcomers))


FIFO: Final = PolicyEntry(
    "first come, first served",
    lambda given: Ordered("fifo", arrival_key, given),
    kit.OrderParameters.parse,
    group=FIRST,
    choose="people expect first come, first served",
)

SJF: Final = PolicyEntry(
    "shortest expected job first among those that fit; no preemption",
    lambda given: Ordered("sjf", remaining_key, given),
    kit.PassingParameters.parse,
    group=FIRST,
    choose="jobs have expected times and cannot resume",
)

SSF: Final = PolicyEntry(
    "smallest service (remaining time x GPUs) first among those that fit; no preemption",
    lambda given: Ordered("ssf", service_key, given),
    kit.PassingParameters.parse,
    group=ORDER,
    choose="as for sjf, where some jobs are much wider than others",
)

SRTF: Final = PolicyEntry(
    "shortest remaining time first; newcomers preempt longer jobs",
    lambda given: preempting_order("srtf", remaining_key, ByTime(), given),
    kit.NewcomerParameters.parse,
    group=FIRST,
    choose="jobs have expected times and resume, and short ones must not wait behind long ones",
)

SRSF: Final = PolicyEntry(
    "smallest remaining service (time x GPUs) first; newcomers preempt jobs with more of it",
    lambda given: preempting_order("srsf", service_key, ByService(), given),
    kit.NewcomerParameters.parse,
    group=PREEMPT,
    choose="as for srtf, where some jobs are much wider than others",
)
