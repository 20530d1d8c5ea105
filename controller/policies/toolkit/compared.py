"""What the reasons of a preemption say of the lengths that were compared, and what is said to a waiting job
behind which nobody stands.

Rule: a policy compares numbers; the reason carries each with what it rests on (`Job.told_left`), so that a
guess reads as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from cotenant.controller.domain import Job, JobId, Length, Reason, because
from cotenant.controller.planning import View

Told = Length | float | str


class Why(NamedTuple):
    """The reasons of one preemption: the newcomer's, and each victim's."""

    newcomer: Reason
    victims: dict[JobId, Reason]


def least_told(told: Iterable[Told]) -> Told:
    """The shortest of these; 0 of none."""
    return min(told, key=_likely_s, default=0.0)


def _likely_s(told: Told) -> float:
    if isinstance(told, Length):
        return told.likely_s
    return inf if isinstance(told, str) else told


def why_shorter(view: View, newcomer: Job, victims: Sequence[Job]) -> Why:
    """Compares the remaining times."""
    mine = newcomer.told_left(view.now_s)
    left = {victim.job_id: victim.told_left(view.now_s) for victim in victims}
    return Why(
        because("preempts", mine, least_told(left.values()), ", ".join(left)),
        {job_id: because("preempted-for", newcomer.job_id, mine, each) for job_id, each in left.items()},
    )


def why_shortest(view: View, job: Job, others: Sequence[Job]) -> Reason | None:
    """What is told to a job if none of the others that may be preempted has more time left; None if its own
    is not known, or there are no others."""
    if job.estimate.remaining_s is None or not others:
        return None
    firm = [other.job_id for other in others if not other.preemptible]
    if len(firm) == len(others):
        return because("not-preemptible", ", ".join(firm[:5]))
    return because("outlives", job.told_left(view.now_s))
