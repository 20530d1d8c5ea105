"""The rule: of the alternatives for a waiting job, take the one that delays all jobs concerned least.

Source: ours. The cost of an alternative is how many seconds later all of them together end than if the job
could begin at once, alone, and nobody lost anything:

    free devices   0
    share          (its time shared - its time alone) + how much later each partner ends
    preempt        the victims' pause + for each: what the job needs, the victim's load and two of its pauses
    wait           until enough devices are free, from predicted ends

A preemption must be one that `patient` would make, whatever it costs here; a share one that `castor-cost`
would: it costs less than waiting, and with each partner more gets done than by taking turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, NamedTuple

from cotenant.controller.domain import RUNNING, Job, Plan, Reason, because
from cotenant.controller.policies.castor.cost import Set
from cotenant.controller.policies.patient import cost_s, needs_s
from cotenant.controller.policies.toolkit import longest_first, victims_for

UNKNOWN: Final = "unknown"
"""The cost of waiting for jobs whose ends are unknown."""
NONE: Final = "impossible"


class Costs(NamedTuple):
    """The cost of each alternative, in seconds; None: the job does not have it."""

    wait_s: float
    share_s: float | None
    preempt_s: float | None

    def told(self) -> tuple[float | str, float | str, float | str]:
        """The costs in this order, as operands of a reason."""
        wait = UNKNOWN if self.wait_s == inf else self.wait_s
        share, preempt = (NONE if each is None else each for each in self[1:])
        return wait, share, preempt


def sharing_s(share: Set) -> float:
    """What a share costs."""
    together = share.together
    return together.ends_s - together.alone_s + together.cost_s


def preempting_s(job: Job, victims: Sequence[Job]) -> float:
    """What a preemption costs. A job that loses a reservation has loaded nothing: it loses the newcomer's
    time."""
    running = [victim for victim in victims if victim.phase is RUNNING]
    pause_s = max((victim.expected_pause_s for victim in running), default=0.0)
    return pause_s + len(victims) * needs_s(job) + sum(map(cost_s, running))


def why_shares(share: Set, costs: Costs) -> Reason:
    names = ", ".join(dict.fromkeys(partner.slot.partner.job_id for partner in share.partners))
    split = share.split
    more = (share.together.ends_s, split.size or "all", split.accumulation_steps, share.pace)
    return because("costs-share", names, *costs.told(), *more)


def why_preempts(victims: Sequence[Job], costs: Costs) -> Reason:
    return because("costs-preempt", *costs.told(), ", ".join(victim.job_id for victim in victims))


def why_waits(plan: Plan, job: Job, wait_s: float, no_share: Reason) -> Reason:
    """`no_share`: what `castor-cost` says of the partner that came nearest to a gain."""
    share_s, more = None, f"; {no_share}"
    if no_share.code == "sharing-costs":
        gains_s, waits_s, cost_s = (float(each) for each in no_share.operands[1:])
        share_s, more = waits_s - gains_s + cost_s, ""
    room = victims_for(plan, job, _longest_first(plan, job))
    preempt_s = None if room is None else preempting_s(job, room.victims)
    return because("costs-wait", *Costs(wait_s, share_s, preempt_s).told(), more)


def _longest_first(plan: Plan, job: Job) -> Iterator[Job]:
    """Jobs that could be preempted, whether or not that would pay."""
    for _, one in longest_first(plan.view):
        may_be = one.phase is RUNNING and one.preemptible and not one.aged
        if may_be and one.spec.priority <= job.spec.priority:
            yield one
