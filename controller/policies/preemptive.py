"""Newcomers that preempt: srtf by remaining time, and what srsf shares with it.

`toolkit/victims.py` says who is a newcomer. Each decision costs what it starts, plus one look at the head of
each queue (one queue per scheduling class).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from cotenant.controller.domain import NOTHING, Decision, Job, Phase, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View, why_waiting
from cotenant.controller.policies.base import Stateless, Traits, is_quiet
from cotenant.controller.policies.classic import remaining_key
from cotenant.controller.policies.entries import FIRST, PolicyEntry
from cotenant.controller.policies.toolkit import (
    FreedDevices,
    NewcomerParameters,
    late_waiting,
    newcomers,
    place_in_order,
    victims_for,
    why_shorter,
    worth_preempting,
)


class Preemptive(Stateless, ABC):
    """Give free devices to queued jobs in order; then the newcomers that found none may preempt."""

    name: str
    traits = Traits(preempts=True, orders_by_size=True)

    def __init__(self, parameters: NewcomerParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else NewcomerParameters()

    @abstractmethod
    def preempt(self, plan: Plan, newcomer: Job) -> object:
        """Make room for the newcomer by preempting others, or do nothing."""

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        any_free, arrived = view.free.everywhere, view.queue.newcomers()
        if not (any_free or arrived) or not view.queue or is_quiet(view, event):
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
    queue_key = staticmethod(remaining_key)

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
    order_key = plan.view.queue.order_key
    for newcomer in fresh:
        if plan.actions and plan.is_placed(newcomer.spec.job_id):
            continue
        if waited_for is None or order_key(newcomer) <= order_key(waited_for):
            preempt(plan, newcomer)


def take(plan: Plan, newcomer: Job, room: FreedDevices, why: Reason | None = None) -> None:
    """Preempts and places. `why` is the newcomer's reason; default: it compares the remaining times."""
    shorter = why_shorter(plan.view, newcomer, room.victims)
    for victim in room.victims:
        plan.preempt(victim, newcomer, shorter.victims[victim.job_id])
    plan.place(newcomer, room.devices, why or shorter.newcomer)


def why_no_victims(view: View, job: Job) -> Reason | None:
    """Why the first in the queue preempts no job."""
    if job.estimate.remaining_s is None:
        return None
    on_devices = [j for j in view.running.jobs_by_end() if j.phase in (Phase.RUNNING, Phase.LOADING)]
    firm = [j.job_id for j in on_devices if not j.preemptible]
    if on_devices and len(firm) == len(on_devices):
        return because("not-preemptible", ", ".join(firm[:5]))
    if on_devices and next(worth_preempting(Plan(view), job), None) is None:
        return because("outlives", job.told_left(view.now_s))
    return None


SRTF: Final = PolicyEntry(
    "shortest remaining time first; newcomers preempt longer jobs",
    Srtf,
    NewcomerParameters.parse,
    group=FIRST,
    choose="jobs have expected times and resume, and short ones must not wait behind long ones",
)
