"""cotenant: the product's own policy. One rule of marginal cost decides between a free device, a share, a
preemption and waiting: of the alternatives for a waiting job, take the one that delays all jobs concerned
least.

Source: ours, from `patient` (order, victims, gangs) and `castor-cost` (partners, waits). The cost of an
alternative is how many seconds later all of them together end than if the job could begin at once, alone, and
nobody lost anything:

    free devices   0
    share          (its time shared - its time alone) + how much later each partner ends
    preempt        the victims' pause + for each: what the job needs, the victim's load and two of its pauses,
                   and what a resume that comes out wrong costs on average (`resume_risk.py`)
    wait           until enough devices are free, from predicted ends

A preemption must be one that `patient` would make, whatever it costs here; a share one that `castor-cost`
would: it costs less than waiting, and with each partner more gets done than by taking turns.

Waiting jobs stand in the order of remaining service. A decision has two passes over those whom `patient`
would ask:

1. In order: free devices; else, where a preemption would pay, the cheaper of it and of a share; else nothing.
2. The first `lookahead` of the others join the partners beside whom that costs less than waiting, in order.

Rule: a job that loads is never preempted, so no load is for nothing. A job that shares is a victim like
others, with what it has left alone; a device with two tenants is taken only from both. An incumbent that ends
or is preempted leaves the device to its co-tenant. A pair that loses is parted.

Rule: no job of a kind that was resumed and came out differently is preempted, nor is it parted from a
co-tenant. Of other kinds one that has proven its resumes costs less than one that has not.

Rule: the forecast for a pair never observed is the mean of the default speed and each kind's own record, only
where nothing is known of the pair itself. Observations, a trained model's prediction and the duty cycles of
the two all come before the record that a kind of job has beside others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import NOTHING, RUNNING, Decision, Job, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import DEFAULT_XI, Interference
from cotenant.controller.planning import Plan, View, why_alone
from cotenant.controller.policies.base import Traits
from cotenant.controller.policies.castor.cost import CastorCost, CostSlots, Set, best_share
from cotenant.controller.policies.entries import FIRST, PolicyEntry
from cotenant.controller.policies.patient import (
    CostOf,
    Patient,
    PatientParameters,
    Round,
    cost_s,
    needs_s,
    why_gain,
)
from cotenant.controller.policies.resume_risk import MISMATCH_PRIOR, ResumeRisk
from cotenant.controller.policies.sharing import (
    ColocationParameters,
    CoTenant,
    ExpectedReleases,
    ShareableSlots,
)
from cotenant.controller.policies.toolkit import (
    FreedDevices,
    late_waiting,
    longest_first,
    take_room,
    victims_for,
)

UNKNOWN: Final = "unknown"
"""The cost of waiting for jobs whose ends are unknown."""
NONE: Final = "impossible"


class Costs(NamedTuple):
    """The cost of each alternative, in seconds; None: the job does not have it."""

    wait_s: float
    share_s: float | None
    preempt_s: float | None

    def operands(self) -> tuple[float | str, float | str, float | str]:
        """The costs in this order, as operands of a reason."""
        wait = UNKNOWN if self.wait_s == inf else self.wait_s
        share, preempt = (NONE if each is None else each for each in self[1:])
        return wait, share, preempt


def sharing_s(share: Set) -> float:
    """The seconds that a share costs: what the newcomer loses to running alone, and what its partners
    lose."""
    together = share.together
    return together.ends_s - together.alone_s + together.cost_s


def preempting_s(job: Job, victims: Sequence[Job], cost_of: CostOf) -> float:
    """The seconds that a preemption costs; `cost_of`: those of one job that runs. A job that loses a
    reservation has loaded nothing: it loses the newcomer's time."""
    running = [victim for victim in victims if victim.phase is RUNNING]
    pause_s = max((victim.estimate.pause_s for victim in running), default=0.0)
    return pause_s + len(victims) * needs_s(job) + sum(map(cost_of, running))


def why_shares(now_s: float, job: Job, share: Set, costs: Costs, slots: ShareableSlots) -> Reason:
    partners = [partner.slot.partner for partner in share.partners]
    names, split = ", ".join(dict.fromkeys(partner.job_id for partner in partners)), share.split
    is_measured = all(slots.interference(job, partner).source != "default" for partner in partners)
    pace = share.pace if is_measured else f"each step {share.pace:.2f} times as long, which is assumed"
    ends = job.told_left(now_s, share.together.ends_s)
    return because(
        "costs-share", names, *costs.operands(), ends, split.size or "all", split.accumulation_steps, pace
    )


def why_preempts(victims: Sequence[Job], costs: Costs) -> Reason:
    return because("costs-preempt", *costs.operands(), ", ".join(victim.job_id for victim in victims))


def why_waits(plan: Plan, job: Job, present: Round, wait_s: float, no_share: Reason) -> Reason:
    """Explains by the three costs why a job waits. `no_share`: what `castor-cost` says of the partner that
    came nearest to a gain."""
    share_s, more = None, f"; {no_share}"
    if no_share.code == "sharing-costs":
        gains_s, waits_s, cost_s = (each for each in no_share.operands[1:] if isinstance(each, float))
        share_s, more = waits_s - gains_s + cost_s, ""
    room = victims_for(plan, job, _longest_first(plan, job, present))
    preempt_s = None if room is None else preempting_s(job, room.victims, present.cost_s)
    return because("costs-wait", *Costs(wait_s, share_s, preempt_s).operands(), more)


def _longest_first(plan: Plan, job: Job, present: Round) -> Iterator[Job]:
    """Jobs that could be preempted, whether or not that would pay."""
    for _, one in longest_first(plan.view):
        may_be = one.phase is RUNNING and one.preemptible and not one.aged and not present.spares(one)
        if may_be and one.spec.priority <= job.spec.priority:
            yield one


class RecordSlots(CostSlots):
    """Slots of a plan, with ratios by record; jobs of unknown length share as well."""

    guesses = True

    def pairs(self, jobs: Sequence[Job], partners: Sequence[Job]) -> list[list[Interference]]:
        return [[record_ratios(xi) for xi in row] for row in super().pairs(jobs, partners)]


def record_ratios(xi: Interference) -> Interference:
    """Replaces a pair's ratios, unless the pair itself is known or neither kind has a record."""
    if xi.source != "default" or (xi.first_speed is None and xi.second_speed is None):
        return xi
    return msgspec.structs.replace(xi, first=ratio(xi.first_speed), second=ratio(xi.second_speed))


@lru_cache(maxsize=1024)
def ratio(speed: float | None) -> float:
    """The interference ratio of a kind with this mean speed beside others."""
    return DEFAULT_XI if speed is None else 2.0 / (1.0 / DEFAULT_XI + speed)


NO_DEVICES = ("gains-nothing", "first-no-devices", "behind-no-devices", "fragmented")
"""Reasons for waiting because nothing is free and no job is to be preempted."""


class CotenantParameters(PatientParameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of `patient`, and those of policies that share."""

    lookahead: int = 16
    """Queued jobs tried for sharing per event."""
    part: bool = True
    """Part pairs whose measured benefit is negative, and do not make such pairs again."""
    observations: int = ColocationParameters().observations
    """Measurements, both ways, before a pair is parted or not made again."""
    mismatch_prior: float = MISMATCH_PRIOR
    """The share of kinds whose resume is taken to come out wrong before any was seen (`resume_risk.py`); with
    0 a resume has a price only where one has failed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.mismatch_prior <= 1.0:
            raise ValueError(f"cotenant: mismatch_prior must be from 0 to 1, got {self.mismatch_prior}")
        self.sharing()

    def sharing(self) -> ColocationParameters:
        return ColocationParameters(lookahead=self.lookahead, part=self.part, observations=self.observations)


class Sharing(CastorCost):
    """The second pass of the rule: `castor-cost` with the rule's reasons; for pairs never observed it uses
    each kind's own record."""

    name = "cotenant"

    def slots(self, plan: Plan) -> RecordSlots:
        return RecordSlots(plan, self.observations)

    def join(self, plan: Plan, job: Job, slots: ShareableSlots) -> CoTenant | None:
        assert isinstance(slots, CostSlots)
        best = best_share(plan, job, slots)
        if best is None:
            return None
        costs = Costs(slots.wait_s(job), sharing_s(best), None)
        why = why_shares(plan.view.now_s, job, best, costs, slots)
        return CoTenant(best.devices, best.split.accumulation_steps, why)


class CheapestFirst(Round):
    """The first pass of the rule: the order of `patient`; where it would preempt, a share that costs less
    comes first."""

    name = "cotenant"

    def __init__(
        self,
        view: View,
        asking: Iterable[Job],
        parameters: CotenantParameters,
        soon: ExpectedReleases | None,
        sharing: Sharing,
    ) -> None:
        super().__init__(view, asking, parameters, soon)
        self._sharing, self._risk = sharing, ResumeRisk(view, parameters.mismatch_prior)
        self._slots: RecordSlots | None = None
        self._seen_actions = 0
        """Number of the plan's actions when the slots were looked up."""

    def cost_s(self, victim: Job) -> float:
        return cost_s(victim) + self._risk.price_s(victim)

    def spares(self, job: Job) -> bool:
        return self._risk.spares(job)

    def list_victims(self, plan: Plan, job: Job) -> Iterator[Job]:
        """Those of `patient` that have more left than their resume costs as well; reservations put nothing at
        risk."""
        now_s, mine_s = plan.view.now_s, needs_s(job)
        for one in super().list_victims(plan, job):
            if one.phase is RUNNING:
                if self.spares(one):
                    continue
                left_s = one.remaining_now_s(now_s) or 0.0
                if self._risk.price_s(one) and left_s - self.cost_s(one) <= mine_s:
                    continue
            yield one

    def settle(self, plan: Plan, job: Job, room: FreedDevices) -> None:
        why = why_gain(plan.view, job, room.victims, self.cost_s)
        if not room.victims:
            take_room(plan, job, room, self.name, why)
            return
        slots = self._slots_of(plan)
        share = best_share(plan, job, slots) if why_alone(job) is None else None
        preempt_s = preempting_s(job, room.victims, self.cost_s)
        costs = Costs(slots.wait_s(job), None if share is None else sharing_s(share), preempt_s)
        if share is None or sharing_s(share) >= preempt_s:
            newcomer = why_preempts(room.victims, costs)
            take_room(plan, job, room, self.name, why._replace(newcomer=newcomer))
            return
        shares = why_shares(plan.view.now_s, job, share, costs, slots)
        plan.share(job, share.devices, shares, share.split.accumulation_steps)
        slots.take(share.devices)
        self._seen_actions = len(plan.actions)

    def _slots_of(self, plan: Plan) -> RecordSlots:
        if self._slots is None or self._seen_actions != len(plan.actions):
            self._slots, self._seen_actions = self._sharing.slots(plan), len(plan.actions)
        return self._slots


class Cotenant(Patient):
    """Remembers what `patient` does."""

    name = "cotenant"
    traits = Traits(preempts=True, shares=True, orders_by_size=True)

    def __init__(self, parameters: CotenantParameters | None = None) -> None:
        parameters = parameters if parameters is not None else CotenantParameters()
        super().__init__(parameters)
        self._parameters, self._sharing = parameters, Sharing(parameters.sharing())

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        apart = self._sharing.part_after(view, event)
        if apart is not None and not self.round(view, ()).spares(view.jobs[apart.job_id]):
            return Decision(actions=(apart,))
        plan, is_partial = self.arrange(view, event)
        if plan is None:
            return NOTHING
        newcomers = (job for job in view.queue.newcomers() if not plan.is_placed(job.job_id))
        self._sharing.admit(plan, newcomers if is_partial else plan.list_unplaced(), late_waiting(plan))
        return plan.decision()

    def round(self, view: View, asking: Iterable[Job], soon: ExpectedReleases | None = None) -> Round:
        return CheapestFirst(view, asking, self._parameters, soon, self._sharing)

    def state_in_words(self, view: View) -> dict[str, str]:
        """Three sentences on what it does now."""
        order = (
            "Short jobs go first; a job of unknown length is expected to need as long again as it has had, "
            "and five minutes at first, until its loops tell."
        )
        shares = (
            "A job shares devices, or takes those of a longer job that can resume, where that costs all "
            "concerned less time than waiting."
        )
        late = (
            "A job that first come, first served would have finished by now goes first, on a part of the "
            "devices, and is not preempted again."
        )
        return {"order": order, "devices": shares, "late jobs": late}

    def explain(self, view: View, job: Job) -> Reason:
        reason = super().explain(view, job)
        if (
            reason.code not in NO_DEVICES
            or job.estimate.remaining_s is None
            or not view.running.jobs_by_end()
        ):
            return reason
        plan = Plan(view)
        slots = self._sharing.slots(plan)
        no_share = why_alone(job) or (
            self._sharing.why_not(plan, job, slots) if slots else slots.closed or because("sharing-nobody")
        )
        if no_share is None:
            return because("next-event")
        return why_waits(plan, job, self.round(view, (job,)), slots.wait_s(job), no_share)


COTENANT: Final = PolicyEntry(
    "short jobs first, shared or preempting where that costs less than waiting; late jobs get their turn",
    Cotenant,
    CotenantParameters.parse,
    group=FIRST,
    choose="you do not know better: the default, with or without expected times",
)
