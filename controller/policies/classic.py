"""Orders that never preempt: fifo by arrival, sjf by remaining time; and what both share with ssf.

Each decision costs what it starts, plus one look at the head of each queue (one queue per scheduling class):
it does not grow with the backlog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.controller.domain import NOTHING, Decision, Job, Reason
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View, why_waiting
from cotenant.controller.policies.base import Stateless, Traits, is_quiet
from cotenant.controller.policies.entries import FIRST, PolicyEntry
from cotenant.controller.policies.toolkit import (
    OrderParameters,
    PassingParameters,
    place_in_order,
    place_ordered,
)

UNKNOWN_S = 1e12
"""Jobs that say nothing about their length go last under size-based orders."""


def remaining_key(job: Job) -> tuple[float, ...]:
    """Shortest expected remaining time first."""
    return (UNKNOWN_S if job.estimate.remaining_s is None else job.estimate.remaining_s,)


class Classic(Stateless):
    """Place queued jobs in order on free devices; never share, never preempt. The options say who
    passes a job that does not fit."""

    def __init__(
        self, name: str, key: Callable[[Job], tuple[float, ...]], parameters: OrderParameters
    ) -> None:
        self.name = name
        self.queue_key = key
        self.parameters = parameters
        self.traits = Traits(orders_by_size=name != "fifo")

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.free.everywhere or not view.queue or is_quiet(view, event):
            return NOTHING
        plan, backfill = Plan(view), self.parameters.backfill
        if backfill == "easy":
            place_ordered(plan, view.queue.jobs_in_order(), self.name, backfill)
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
    return Classic("sjf", remaining_key, parameters or PassingParameters())


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
