"""What the reasons of a preemption say of the lengths that were compared.

Rule: a policy compares numbers; the reason carries each with what it rests on (`Job.told_left`), so that a
guess reads as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from cotenant.controller.domain import Job, Length, because
from cotenant.controller.planning import View
from cotenant.controller.policies.toolkit.whole_queue import Why

Told = Length | float | str


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
