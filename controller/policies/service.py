"""Orders by service, remaining time x GPUs: ssf never preempts, and under srsf newcomers do.

Source: the two-dimensional view of Tiresias (NSDI '19) section 3.2: a job of eight GPUs takes
eight times as much as one of the same length on one GPU, so the product counts.

Departs from there in that `srsf` is to `srtf` what service is to time: only newcomers preempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from cotenant.controller.domain import Job, Length, Reason, because
from cotenant.controller.planning import Plan, View, why_waiting
from cotenant.controller.policies.classic import UNKNOWN_S, Classic
from cotenant.controller.policies.entries import ORDER, PREEMPT, PolicyEntry
from cotenant.controller.policies.preemptive import Preemptive
from cotenant.controller.policies.toolkit import (
    NewcomerParameters,
    OrderParameters,
    PassingParameters,
    Why,
    find_room,
    least_told,
    take_room,
)


def service_now(job: Job, now_s: float) -> float:
    """Expected GPU-seconds still to do at `now_s`; `UNKNOWN_S` if the job said nothing of its length."""
    left_s = job.remaining_now_s(now_s)
    return UNKNOWN_S if left_s is None else left_s * job.spec.gpus_min


def _told_service(job: Job, now_s: float) -> Length | float | str:
    return job.told_left(now_s, service_now(job, now_s))


def service_key(job: Job) -> tuple[float, ...]:
    """Smallest remaining service first; that of a waiting job does not change."""
    return (UNKNOWN_S if job.estimate.remaining_s is None else job.estimate.remaining_s * job.spec.gpus,)


def ssf(parameters: OrderParameters | None = None) -> Classic:
    """Smallest service first among those that fit; no job is preempted."""
    return Classic("ssf", service_key, parameters or PassingParameters())


class RemainingService:
    """The order of SRSF."""

    name = "srsf"

    def list_victims(self, plan: Plan, job: Job) -> Iterator[Job]:
        """Jobs with more remaining service, most first. Sorts those only, and mostly there are few."""
        if job.estimate.remaining_s is None:
            return iter(())
        view, mine = plan.view, job.estimate.remaining_s * job.spec.gpus
        now_s = view.now_s
        more = [
            (-service, other.number, other)
            for other in chain(view.running.training, view.running.loading)
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
    mine = _told_service(newcomer, view.now_s)
    left = {victim.job_id: _told_service(victim, view.now_s) for victim in victims}
    return Why(
        because("preempts-service", mine, least_told(left.values()), ", ".join(left)),
        {job_id: because("preempted-service", newcomer.job_id, mine, more) for job_id, more in left.items()},
    )


class Srsf(Preemptive):
    """Smallest remaining service first; a newcomer may preempt jobs with more of it."""

    name = RemainingService.name
    queue_key = staticmethod(service_key)
    _order = RemainingService()

    def preempt(self, plan: Plan, newcomer: Job) -> bool:
        return self._order.make_room(plan, newcomer, self._order.list_victims(plan, newcomer))

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in ("first-no-devices", "behind-no-devices", "fragmented"):
            return reason
        if (
            job.estimate.remaining_s is None
            or next(self._order.list_victims(Plan(view), job), None) is not None
        ):
            return reason
        return (
            because("outlives-service", _told_service(job, view.now_s))
            if view.running.jobs_by_end()
            else reason
        )


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
