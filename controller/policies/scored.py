"""Orders by a score that changes while a job waits.

Rule: a `queue_key` must not change while a job waits, so here it is empty, and the policy scores every
waiting job and sorts when something is free. That cost grows with the queue, unlike a look at the head of
each class; so where a job may be passed, only classes that fit now are scored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from cotenant.controller.domain import NOTHING, Decision, DeviceId, Job, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View, is_aged_waiting, is_possible, why_waiting
from cotenant.controller.policies.base import Stateless, is_quiet
from cotenant.controller.policies.ordered import UNKNOWN_S
from cotenant.controller.policies.toolkit import OrderParameters, place_ordered


class Scored(Stateless, ABC):
    """Places queued jobs on free devices by `scores`, the lowest first; never shares, never preempts."""

    name: str

    def __init__(self, parameters: OrderParameters) -> None:
        self.parameters = parameters

    @abstractmethod
    def scores(self, view: View, jobs: Sequence[Job], event: ev.AnyEvent | None) -> Sequence[float]:
        """The score of each of these waiting jobs, the lowest first; ties go by arrival. `event`: it has just
        happened and is not observed yet, so that the order is the same before and after."""

    def why(self, view: View, job: Job, rank: int) -> Reason:
        """Why the job at this place starts, 1 being the first."""
        return because("free-devices-in-order", self.name, job.spec.gpus)

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return ()

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.queue or not view.free.everywhere or is_quiet(view, event):
            return NOTHING
        plan = Plan(view)
        jobs = self._candidates(plan)
        if not jobs:
            return NOTHING
        ordered = self.order_jobs(view, jobs, event)
        ranks = {job.number: rank for rank, job in enumerate(ordered, 1)}

        def why(job: Job, devices: tuple[DeviceId, ...]) -> Reason:
            return self.why(view, job, ranks[job.number])

        place_ordered(plan, ordered, self.name, self.parameters.backfill, why)
        return plan.decision()

    def _candidates(self, plan: Plan) -> list[Job]:
        """Jobs that may matter: all of them; where those that do not fit are passed, those that do."""
        view = plan.view
        heads = list(view.queue.heads())
        if self.parameters.backfill == "any" and not is_aged_waiting(view):
            heads = [head for head in heads if plan.find_free(head) is not None]
        return jobs_behind(view, heads)

    def waiting(self, view: View, event: ev.AnyEvent) -> list[Job]:
        """Returns all waiting jobs, best score first."""
        return self.order_jobs(view, list(view.queue.jobs_in_order()), event)

    def order_jobs(self, view: View, jobs: Sequence[Job], event: ev.AnyEvent | None) -> list[Job]:
        """Aged ones first, then by rank (priority, fair share), then by score."""
        scores = self.scores(view, jobs, event)
        ranks = [view.queue.order_key(job)[0] for job in jobs]
        keyed = [(rank, s, job.number, job) for rank, s, job in zip(ranks, scores, jobs, strict=True)]
        keyed.sort()
        return [entry[-1] for entry in keyed]

    def explain(self, view: View, job: Job) -> Reason:
        ordered = self.order_jobs(view, jobs_behind(view, view.queue.heads()), None)
        first = next((each for each in ordered if is_possible(view, each)), None)
        return why_waiting(view, job, self.name, first)


def jobs_behind(view: View, heads: Iterable[Job]) -> list[Job]:
    """All waiting jobs of the scheduling classes of these, themselves included."""
    return [job for head in heads for job in view.queue.jobs_of_class(view.queue.class_of(head))]


def waited_s(job: Job, now_s: float) -> float:
    """How long the job could have run and did not."""
    return job.spent.queued_s + now_s - job.phase_since_s


def expected_s(job: Job) -> float:
    """Expected remaining time, at least a second; `UNKNOWN_S` if nothing is known."""
    return UNKNOWN_S if job.estimate.remaining_s is None else max(job.estimate.remaining_s, 1.0)
