"""The classic orders: fifo, sjf, srtf.

Each decision costs what it starts, plus one look at the head of each queue (one queue per shape):
it does not grow with the backlog.
"""

from __future__ import annotations

from collections.abc import Callable

from cotenant.controller.domain.actions import NOTHING, Decision
from cotenant.controller.domain.events import AnyEvent
from cotenant.controller.domain.job import Job, Phase
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import View
from cotenant.controller.policies.base import (
    Candidates,
    Stateless,
    is_aged_waiting,
    is_possible,
    is_quiet,
    why_waiting,
)  # fmt: skip
from cotenant.controller.policies.victims import victims_for, worth_preempting

UNKNOWN_S = 1e12
"""Jobs that say nothing about their length go last under size-based orders."""


def by_remaining(job: Job) -> tuple[float, ...]:
    """Shortest expected remaining time first."""
    return (UNKNOWN_S if job.remaining_s is None else job.remaining_s,)


class Classic(Stateless):
    """Place queued jobs in order on free devices; never share, never preempt.

    `strict`: the first job that does not fit keeps those behind it waiting. Otherwise a job that does
    not fit is passed over.
    """

    def __init__(self, name: str, key: Callable[[Job], tuple[float, ...]], strict: bool) -> None:
        self.name = name
        self._key = key
        self._strict = strict

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return self._key(job)

    def decide(self, view: View, event: AnyEvent) -> Decision:
        if not view.queued_count() or not view.free.any() or is_quiet(view, event):
            return NOTHING
        plan = Plan(view)
        place_in_order(plan, self.name, self._strict)
        return plan.decision()

    def explain(self, view: View, job: Job) -> Reason:
        return why_waiting(view, job, self.name)


def place_in_order(plan: Plan, order: str, strict: bool) -> Job | None:
    """Give free devices to queued jobs in order.

    Returns the job that all others must wait for, if there is one: the first that does not fit and has aged,
    or any that does not fit under a strict order while devices are left. (If smaller ones went on passing it
    by, a wide job that has aged would still starve.) A job that is not possible now is never waited for.
    """
    view, free = plan.view, plan.free_everywhere()
    candidates = Candidates(view)
    while (job := candidates.next()) is not None:
        if plan.actions and plan.is_placed(job.spec.job_id):
            candidates.again(job)
            continue
        devices = plan.find_free(job) if free else None
        if devices is not None:
            plan.place(job, devices, because("free-devices-in-order", order, len(devices)))
            free -= len(devices)
            if not free and not job.aged:  # And those that have aged stand before it.
                return None
            candidates.again(job)
        elif strict or job.aged:
            if is_possible(view, job):
                return job
        elif not free:
            return None
    return None


def fifo() -> Classic:
    """First come, first served; the head of the queue keeps its place until it fits."""
    return Classic("fifo", lambda job: (), strict=True)


def sjf() -> Classic:
    """Shortest expected remaining time first among those that fit."""
    return Classic("sjf", by_remaining, strict=False)


class Srtf(Stateless):
    """Shortest remaining time first; a newcomer may preempt jobs with more remaining time.

    The orchestrator of Lazer section 4.1 with the deferral always 0: free devices first, then running
    jobs by remaining time, longest first, until the newcomer fits. Only newcomers (jobs that have just
    become eligible) preempt, and none while an aged job waits for its devices; freed devices go to the
    queue in order (variant `srtf` of the notes on Lazer; the variant that re-evaluates the whole queue is
    `srtf-full`).
    """

    name = "srtf"

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return by_remaining(job)

    def decide(self, view: View, event: AnyEvent) -> Decision:
        if not view.queued_count() or is_quiet(view, event):
            return NOTHING
        return place_or_preempt(Plan(view), self.name, preempt_longest)

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in ("first-no-devices", "behind-no-devices", "fragmented"):
            return reason
        return why_no_victims(view, job) or reason


def place_or_preempt(plan: Plan, order: str, preempt: Callable[[Plan, Job], bool]) -> Decision:
    """Give free devices to queued jobs in order; newcomers that find none may preempt, unless an aged job
    waits for its devices."""
    view = plan.view
    if view.free.any():
        newcomers = () if place_in_order(plan, order, strict=False) is not None else view.newcomers()
    else:
        newcomers = view.newcomers()
        if not newcomers or is_aged_waiting(view):
            return NOTHING
    for newcomer in newcomers:
        if not plan.is_placed(newcomer.spec.job_id):
            preempt(plan, newcomer)
    return plan.decision()


def preempt_longest(plan: Plan, newcomer: Job) -> bool:
    """Make room for the newcomer by preempting the jobs with the most remaining time, or do nothing."""
    found = victims_for(plan, newcomer, worth_preempting(plan, newcomer))
    if found is None:
        return False
    victims, devices = found
    view = plan.view
    mine_s = newcomer.remaining_s or 0.0
    for victim in victims:
        left_s = victim.remaining_now_s(view.now_s) or 0.0
        plan.preempt(victim, newcomer, because("preempted-for", newcomer.job_id, mine_s, left_s))
    least_s = min(victim.remaining_now_s(view.now_s) or 0.0 for victim in victims)
    names = ", ".join(victim.job_id for victim in victims)
    plan.place(newcomer, devices, because("preempts", mine_s, least_s, names))
    return True


def why_no_victims(view: View, job: Job) -> Reason | None:
    """Why the first in the queue preempts nobody."""
    if job.remaining_s is None:
        return None
    on_devices = [j for j in view.on_devices() if j.phase in (Phase.RUNNING, Phase.LOADING)]
    firm = [j.job_id for j in on_devices if not j.preemptible]
    if on_devices and len(firm) == len(on_devices):
        return because("not-preemptible", ", ".join(firm[:5]))
    if on_devices and next(worth_preempting(Plan(view), job), None) is None:
        return because("outlives", job.remaining_s)
    return None
