"""Two classes without a quota: hp jobs first, which may preempt spot jobs. What GFS's baselines share.

Rule: hp jobs are asked before spot jobs; one that finds no free devices takes those of spot jobs, as the
policy chooses them, or waits. Spot jobs get what is free and never preempt. Who does not fit is passed over,
unless the policy keeps the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from cotenant.controller.domain import NOTHING, Decision, DeviceId, Job, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View, is_possible, why_waiting
from cotenant.controller.policies.base import PolicyParameters, Stateless, Traits, is_quiet
from cotenant.controller.policies.toolkit.compared import Why
from cotenant.controller.policies.toolkit.victims import FreedDevices
from cotenant.controller.policies.toolkit.walk import Candidates, Then, walk
from cotenant.controller.policies.toolkit.whole_queue import take_room


def preemptible_jobs(view: View) -> Iterator[Job]:
    """Jobs that run or load and may be preempted, in the ledger's order."""
    for jobs in (view.running.training, view.running.loading):
        for job in jobs:
            if job.preemptible:
                yield job


class ClassParameters(PolicyParameters, frozen=True, kw_only=True):
    """Named options of an order within each class."""

    backfill: Literal["none", "any"] = "any"
    """Who may start ahead of a job of its class that does not fit: nobody, or whoever fits."""


class TwoClasses(Stateless):
    name = "two-classes"
    traits = Traits(preempts=True, has_classes=True)

    def __init__(self, parameters: ClassParameters) -> None:
        self.keeps_order = parameters.backfill == "none"
        """Nobody passes a job of its class that does not fit, if it is possible at all."""

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return (0.0,) if job.spec.job_class == "hp" else (1.0, *self.spot_key(job))

    def spot_key(self, job: Job) -> tuple[float, ...]:
        """First come, first served."""
        return ()

    def find(self, plan: Plan, job: Job) -> tuple[DeviceId, ...] | None:
        """Free devices for the whole gang: best fit."""
        return plan.find_free(job)

    def make_room(self, plan: Plan, job: Job) -> FreedDevices | None:
        """Devices that spot jobs leave for an hp job; None: nobody does."""
        return None

    def why(self, newcomer: Job, victim: Job) -> Reason:
        return because("evicted-newest", newcomer.job_id)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.queue or is_quiet(view, event):
            return NOTHING
        plan, waited_for = Plan(view), set[str]()

        def find(job: Job) -> tuple[DeviceId, ...] | None:
            return None if job.spec.job_class in waited_for else self.find(plan, job)

        def otherwise(job: Job) -> Then:
            if job.spec.job_class in waited_for:
                return Then.PASS
            if job.spec.job_class == "hp" and self._preempt(plan, job):
                return Then.AGAIN
            if self.keeps_order and is_possible(view, job):
                waited_for.add(job.spec.job_class)
            return Then.PASS

        walk(plan, Candidates(view), self.name, otherwise, find=find)
        return plan.decision()

    def _preempt(self, plan: Plan, job: Job) -> bool:
        found = self.make_room(plan, job)
        if found is not None:
            why = {victim.job_id: self.why(job, victim) for victim in found.victims}
            evicts = because("evicts-for-hp", len(why), ", ".join(why))
            take_room(plan, job, found, self.name, Why(evicts, why))
        return found is not None

    def explain(self, view: View, job: Job) -> Reason:
        return why_waiting(view, job, self.name)
