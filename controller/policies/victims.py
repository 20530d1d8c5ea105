"""Whom to preempt for a newcomer: the parts that all preempting policies share.

Rule: a walk over the jobs that run starts with the one that has most left to do and stops as soon as the
question is answered; nothing is sorted per decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cotenant.controller.domain.ids import DeviceId
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.view import View


def longest_first(view: View) -> Iterator[Job]:
    """RUNNING and LOADING jobs by remaining time now, most first, ties by arrival; those past their expected
    end have nothing left and come last. Jobs of unknown length are left out. The view must not change then.
    """
    now_s = view.now_s
    running = _known(reversed(view.running()))
    paced = {job.number: job for job in view.paced()}
    others = _known(reversed(view.loading()))
    if paced:  # Where ends are not in the order of remaining time.
        running = (job for job in running if job.number not in paced)
        known = [*others, *_known(iter(paced.values()))]
        others = iter(sorted(known, key=lambda job: (-_left_s(job, now_s), job.number)))
    other = next(others, None)
    for job in running:
        if other is not None:
            left_s = _left_s(job, now_s)
            while other is not None and _stands_before(other, now_s, job, left_s):
                yield other
                other = next(others, None)
        yield job
    while other is not None:
        yield other
        other = next(others, None)


def _known(jobs: Iterator[Job]) -> Iterator[Job]:
    return (job for job in jobs if job.remaining_s is not None)


def _left_s(job: Job, now_s: float) -> float:
    return job.remaining_now_s(now_s) or 0.0


def _stands_before(other: Job, now_s: float, job: Job, left_s: float) -> bool:
    other_s = _left_s(other, now_s)
    return other_s > left_s or (other_s == left_s and other.number < job.number)


def worth_preempting(plan: Plan, newcomer: Job) -> Iterator[Job]:
    """Jobs that may be preempted and have more remaining time than the newcomer, longest first."""
    mine_s, now_s = newcomer.remaining_s, plan.view.now_s
    if mine_s is None:
        return
    for job in longest_first(plan.view):
        if _left_s(job, now_s) <= mine_s:
            return
        # One that has aged has waited long enough for all its life.
        if job.preemptible and not job.aged and not plan.is_leaving(job.job_id):
            yield job


def victims_for(
    plan: Plan, newcomer: Job, candidates: Iterable[Job]
) -> tuple[list[Job], tuple[DeviceId, ...]] | None:
    """The first of the candidates, in their order, whose leaving makes room for the newcomer on what is free
    and what they leave; and the devices it gets.

    Candidates that turn out not to be needed are spared. None if all of them together do not make room.
    """
    trial: Plan | None = None
    tried: list[Job] = []
    for job in candidates:
        if trial is None:
            trial = plan.fork()
        tried.append(job)
        trial.suppose_left(job)
        devices = trial.find_free(newcomer)
        if devices is not None:
            chosen = set(devices)
            return [v for v in tried if v.placement and chosen.intersection(v.placement.devices)], devices
    return None
