"""The classic orders: fifo, sjf, srtf by arrival and time; ssf and srsf by service, remaining time x GPUs.

Each decision costs what it starts, plus one look at the head of each queue (one queue per scheduling class):
it does not grow with the backlog.

Source of service: the two-dimensional view of Tiresias (NSDI '19) section 3.2: a job of eight GPUs takes
eight times as much as one of the same length on one GPU, so the product counts. `ssf` never preempts; under
`srsf` newcomers do (`toolkit/victims.py` says who is one). Departs from there in that `srsf` is to `srtf`
what service is to time: only newcomers preempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from cotenant.controller.domain import NOTHING, Decision, Job, Phase, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View
from cotenant.controller.policies.base import (
    FIRST,
    ORDER,
    PREEMPT,
    PolicyEntry,
    Stateless,
    is_quiet,
    why_waiting,
)
from cotenant.controller.policies.toolkit import (
    FreedDevices,
    NewcomerParameters,
    OrderParameters,
    PassingParameters,
    Why,
    find_room,
    late_waiting,
    newcomers,
    place_in_order,
    place_ordered,
    take_room,
    victims_for,
    worth_preempting,
)

UNKNOWN_S = 1e12
"""Jobs that say nothing about their length go last under size-based orders."""


def by_remaining(job: Job) -> tuple[float, ...]:
    """Shortest expected remaining time first."""
    return (UNKNOWN_S if job.remaining_s is None else job.remaining_s,)


class Classic(Stateless):
    """Place queued jobs in order on free devices; never share, never preempt. The options say who
    passes a job that does not fit."""

    def __init__(
        self, name: str, key: Callable[[Job], tuple[float, ...]], parameters: OrderParameters
    ) -> None:
        self.name = name
        self.queue_key = key
        self.parameters = parameters
        self.takes_turns = name != "fifo"

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.queued_count() or not view.free.everywhere or is_quiet(view, event):
            return NOTHING
        plan, backfill = Plan(view), self.parameters.backfill
        if backfill == "easy":
            place_ordered(plan, view.queued(), self.name, backfill)
        else:
            place_in_order(plan, self.name, strict=backfill == "none")
        return plan.decision()

    def explain(self, view: View, job: Job) -> Reason:
        return why_waiting(view, job, self.name)


def fifo(parameters: OrderParameters | None = None) -> Classic:
    """First come, first served; the head of the queue keeps its place until it fits."""
    return Classic("fifo", lambda job: (), parameters or OrderParameters())


def sjf(parameters: OrderParameters | None = None) -> Classic:
    """Shortest expected remaining time first among those that fit."""
    return Classic("sjf", by_remaining, parameters or PassingParameters())


class Preemptive(Stateless, ABC):
    """Give free devices to queued jobs in order; then the newcomers that found none may preempt."""

    name: str
    preempts = True
    takes_turns = True

    def __init__(self, parameters: NewcomerParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else NewcomerParameters()

    @abstractmethod
    def preempt(self, plan: Plan, newcomer: Job) -> object:
        """Make room for the newcomer by preempting others, or do nothing."""

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        any_free, arrived = view.free.everywhere, view.newcomers()
        if not (any_free or arrived) or not view.queued_count() or is_quiet(view, event):
            return NOTHING
        fresh = newcomers(arrived, self.parameters.newcomers) if arrived else ()
        if not any_free and not fresh:
            return NOTHING
        plan = Plan(view)
        if any_free:
            place_in_order(plan, self.name, strict=False)
        if fresh:
            preempt_for_each(plan, fresh, late_waiting(plan), self.preempt)
        return Decision(actions=tuple(plan.actions)) if plan.actions else NOTHING


class Srtf(Preemptive):
    """Shortest remaining time first; a newcomer may preempt jobs with more remaining time.

    The orchestrator of Lazer section 4.1 with the deferral always 0: free devices first, then running
    jobs by remaining time, longest first, until the newcomer fits. Only newcomers preempt
    (`toolkit/victims.py` says who is one), and none past an aged job that waits for its devices; freed
    devices go to the queue in order. The variant that re-evaluates the whole queue is `srtf-full`.
    """

    name = "srtf"
    queue_key = staticmethod(by_remaining)

    def preempt(self, plan: Plan, newcomer: Job) -> object:
        """Make room for the newcomer by preempting the jobs with the most remaining time, or do nothing."""
        found = victims_for(plan, newcomer, worth_preempting(plan, newcomer))
        if found is not None:
            take(plan, newcomer, found)
        return found

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in ("first-no-devices", "behind-no-devices", "fragmented"):
            return reason
        return why_no_victims(view, job) or reason


def preempt_for_each(
    plan: Plan, fresh: Iterable[Job], waited_for: Job | None, preempt: Callable[[Plan, Job], object]
) -> None:
    """Asks newcomers that found no devices, in turn; none behind a job for which devices are kept back, since
    what it would free is for that job."""
    order_key = plan.view.order_key
    for newcomer in fresh:
        if plan.actions and plan.is_placed(newcomer.spec.job_id):
            continue
        if waited_for is None or order_key(newcomer) <= order_key(waited_for):
            preempt(plan, newcomer)


def take(plan: Plan, newcomer: Job, room: FreedDevices, why: Reason | None = None) -> None:
    """Preempts and places. `why` is the newcomer's reason; default: it compares the remaining times."""
    now_s, mine_s, newcomer_id = plan.view.now_s, newcomer.remaining_s or 0.0, newcomer.spec.job_id
    left_s = {victim.spec.job_id: victim.remaining_now_s(now_s) or 0.0 for victim in room.victims}
    for victim in room.victims:
        reason = because("preempted-for", newcomer_id, mine_s, left_s[victim.spec.job_id])
        plan.preempt(victim, newcomer, reason)
    shorter = because("preempts", mine_s, min(left_s.values()), ", ".join(left_s))
    plan.place(newcomer, room.devices, why or shorter)


def why_no_victims(view: View, job: Job) -> Reason | None:
    """Why the first in the queue preempts no job."""
    if job.remaining_s is None:
        return None
    on_devices = [j for j in view.on_devices() if j.phase in (Phase.RUNNING, Phase.LOADING)]
    firm = [j.job_id for j in on_devices if not j.preemptible]
    if on_devices and len(firm) == len(on_devices):
        return because("not-preemptible", ", ".join(firm[:5]))
    if on_devices and next(worth_preempting(Plan(view), job), None) is None:
        return because("outlives", job.remaining_s)
    return None


FIFO: Final = PolicyEntry(
    "first come, first served",
    fifo,
    OrderParameters.parse,
    group=FIRST,
    choose="people expect first come, first served",
)

SJF: Final = PolicyEntry(
    "shortest expected job first among those that fit; no preemption",
    sjf,
    PassingParameters.parse,
    group=FIRST,
    choose="jobs have expected times and cannot resume",
)

SRTF: Final = PolicyEntry(
    "shortest remaining time first; newcomers preempt longer jobs",
    Srtf,
    NewcomerParameters.parse,
    group=FIRST,
    choose="jobs have expected times and resume, and short ones must not wait behind long ones",
)


def service_now(job: Job, now_s: float) -> float:
    """Expected GPU-seconds still to do at `now_s`; `UNKNOWN_S` if the job said nothing of its length."""
    left_s = job.remaining_now_s(now_s)
    return UNKNOWN_S if left_s is None else left_s * job.spec.gpus_min


def by_service(job: Job) -> tuple[float, ...]:
    """Smallest remaining service first; that of a waiting job does not change."""
    return (UNKNOWN_S if job.remaining_s is None else job.remaining_s * job.spec.gpus,)


def ssf(parameters: OrderParameters | None = None) -> Classic:
    """Smallest service first among those that fit; no job is preempted."""
    return Classic("ssf", by_service, parameters or PassingParameters())


class RemainingService:
    """The order of SRSF."""

    name = "srsf"

    def behind(self, plan: Plan, job: Job) -> Iterator[Job]:
        """Jobs with more remaining service, most first. Sorts those only, and mostly there are few."""
        if job.remaining_s is None:
            return iter(())
        view, mine = plan.view, job.remaining_s * job.spec.gpus
        now_s = view.now_s
        more = [
            (-service, other.number, other)
            for other in chain(view.running(), view.loading())
            if mine < (service := service_now(other, now_s)) < UNKNOWN_S
        ]
        more.sort()
        return (
            other
            for _, _, other in more
            if other.preemptible
            and not other.aged
            and other.spec.priority <= job.spec.priority
            and not plan.is_leaving(other.job_id)
        )

    def is_last(self, job: Job) -> bool:
        return True

    def make_room(self, plan: Plan, job: Job, behind: Iterator[Job]) -> bool:
        room = find_room(plan, job, behind)
        if room is not None:
            take_room(plan, job, room, self.name, _why_smaller(plan.view, job, room.victims))
        return room is not None


def _why_smaller(view: View, newcomer: Job, victims: Sequence[Job]) -> Why:
    """Compares the remaining services."""
    mine = service_now(newcomer, view.now_s)
    left = {victim.job_id: service_now(victim, view.now_s) for victim in victims}
    names = ", ".join(left)
    return Why(
        because("preempts-service", mine, min(left.values(), default=0.0), names),
        {job_id: because("preempted-service", newcomer.job_id, mine, more) for job_id, more in left.items()},
    )


class Srsf(Preemptive):
    """Smallest remaining service first; a newcomer may preempt jobs with more of it."""

    name = RemainingService.name
    queue_key = staticmethod(by_service)
    _order = RemainingService()

    def preempt(self, plan: Plan, newcomer: Job) -> bool:
        return self._order.make_room(plan, newcomer, self._order.behind(plan, newcomer))

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in ("first-no-devices", "behind-no-devices", "fragmented"):
            return reason
        if job.remaining_s is None or next(self._order.behind(Plan(view), job), None) is not None:
            return reason
        return because("outlives-service", service_now(job, view.now_s)) if view.on_devices() else reason


SSF: Final = PolicyEntry(
    "smallest service (remaining time x GPUs) first among those that fit; no preemption",
    ssf,
    PassingParameters.parse,
    group=ORDER,
    choose="as for sjf, where some jobs are much wider than others",
)

SRSF: Final = PolicyEntry(
    "smallest remaining service (time x GPUs) first; newcomers preempt jobs with more of it",
    Srsf,
    NewcomerParameters.parse,
    group=PREEMPT,
    choose="as for srtf, where some jobs are much wider than others",
)
