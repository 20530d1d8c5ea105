"""Preemptions that are earned: how much of a job's time `cotenant` may take from it for others.

Rule: what preemptions cost a job stays below a tenth of what it has trained, and a job that has loaded is
left alone at least as long as its load took. The costs are pauses, loads after a preemption and steps made
twice (`TimeSpent.interrupted_s`). A preemption counts with its expected cost when it is decided. If it costs
more, the job is left alone until it has earned that as well.

Rule: this binds every preemption that `cotenant` decides, the parting of a pair included. A newcomer of
greater priority or of class hp is exempt, and so is a late one (`toolkit/late.py`). Reservations, promises
and people preempt by other ways than the policy, and are not bound.

A job that trains earns one second a second. So the time from which it may be preempted is known as soon as
it has loaded, and the policy asks to be woken then.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import ENDED, Job, JobId, array_of
from cotenant.controller.planning import View

COST_SHARE: Final = 0.1
"""The most that preemptions may cost a job, as a share of what it has trained."""


def load_s(job: Job) -> float:
    """The next load of a job, in seconds: the larger of its estimate and of the last one of its own."""
    return max(job.estimate.load_s, job.attempt.load_s)


def earned_at_s(job: Job) -> float:
    """The time from which a job that trains may be preempted once more."""
    cost_s = job.spent.interrupted_s + job.estimate.pause_s + load_s(job)
    return job.phase_since_s + max(job.attempt.load_s, cost_s / COST_SHARE - job.spent.run_s)


def is_exempt(newcomer: Job, victim: Job) -> bool:
    """Whether the newcomer may preempt the victim before that has earned its load."""
    return newcomer.spec.job_class == "hp" or newcomer.spec.priority > victim.spec.priority


def stays_s(job: Job) -> float:
    """How long a waiting job must keep the devices that it starts on: one that was preempted loads, and
    trains as long as it has loaded, before it leaves them. 0: it was not preempted."""
    return 2.0 * load_s(job) + job.estimate.pause_s if job.counts.preemptions else 0.0


def successor(view: View, ended_id: JobId) -> Job | None:
    """The next task of an array or a sweep of which a task has just ended, if only jobs that were preempted
    stand before it: they would take the devices that its sibling has left, and the task those of others."""
    ended = view.jobs.get(ended_id)
    if ended is None or ended.phase not in ENDED or (array := array_of(ended.job_id)) == ended.job_id:
        return None
    for job in view.queue.jobs_in_order():
        if array_of(job.job_id) == array:
            return job
        if not job.counts.preemptions or job.aged or job.rank < ended.rank:
            return None
    return None
