"""The price of a resume that may come out wrong, which `cotenant` adds to the cost of a preemption.

A job that was preempted shows at its resume whether it is where it was left. If it is not, it begins anew,
from its newest proven checkpoint or from its beginning. So a preemption costs, on average and in seconds,

    P(mismatch) x what the job has trained since its newest proven checkpoint.

P(mismatch) is the mean of a Beta distribution, on three levels:

    all kinds   m = (20 x prior + R) / (20 + K), when R of the K kinds that were resumed were refuted
    its family  f = (m + r) / (1 + r + p), after p proven and r refuted resumes with other numbers
    this kind   f / (1 + n), after n proven resumes

The prior (`mismatch_prior`, .05) is an assumption, not a measurement; it counts as much as 20 kinds. A kind
starts with the mean of its family (the same words with other numbers), and that with the mean of all kinds:
each counts as much as one resume, since whether a script is taken up whole hardly changes from one resume to
the next. So its own few resumes say more than all others.

Rule: no job of a refuted kind is preempted: at its next resume it would most likely begin anew as well.

Rule: a job whose user vouches for it (`--resumable yes`) has no price. It saves by itself, and nobody
compares its steps, so it never begins anew because of them.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import Job, ResumeCounts
from cotenant.controller.planning import View

MISMATCH_PRIOR: Final = 0.05
PRIOR_KINDS: Final = 20


class ResumeRisk:
    """The risks at one moment, each worked out once."""

    def __init__(self, view: View, mismatch_prior: float) -> None:
        self._view = view
        resumes = view.resumes
        self._mismatch_share = (PRIOR_KINDS * mismatch_prior + resumes.kinds_refuted) / (
            PRIOR_KINDS + resumes.kinds
        )
        self._prices_s: dict[int, float] = {}
        """By the number of the job."""

    def spares(self, job: Job) -> bool:
        """Whether it is never preempted, because its kind was refuted."""
        return job.spec.resumable is not True and self._view.resumes.counts(job).proof == "refuted"

    def price_s(self, job: Job) -> float:
        """What its resume costs on average beyond its load, in seconds."""
        price_s = self._prices_s.get(job.number)
        if price_s is None:
            price_s = 0.0
            if self._mismatch_share and job.spec.resumable is not True:
                others = self._view.resumes.others(job)
                share = (self._mismatch_share + others.refuted) / (1 + others.refuted + others.proven)
                p = mismatch_probability(self._view.resumes.counts(job), share)
                price_s = p * unproven_s(job, self._view.now_s)
            self._prices_s[job.number] = price_s
        return price_s


def mismatch_probability(counts: ResumeCounts, mismatch_share: float) -> float:
    """How probably the next resume of a kind comes out wrong; `mismatch_share`: of its family."""
    return 1.0 if counts.refuted else mismatch_share / (1 + counts.proven)


def unproven_s(job: Job, now_s: float) -> float:
    """How long it has trained since its newest proven checkpoint, in all without one: a part of its time, as
    many steps as were made since then of all."""
    proven_step = max((each.step for each in job.progress.checkpoints if each.proven), default=0)
    if not proven_step:
        return job.ran_s(now_s)
    return max(0.0, 1.0 - proven_step / max(1, job.progress.step)) * job.ran_s(now_s)
