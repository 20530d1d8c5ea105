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

A preemption must also be earned (`earned.py`): what preemptions cost a job stays below a tenth of what it has
trained, and a job that has loaded is left alone at least as long as its load took. Newcomers of greater
priority or of class hp, and late jobs, are exempt. A job that was preempted does not start where it would be
preempted again too soon, and the next task of an array starts on the devices that its sibling has left.

Waiting jobs stand in the order of remaining service. A decision has two passes over those whom `patient`
would ask:

1. In order: free devices; else, where a preemption would pay, the cheaper of it and of a share; else nothing.
2. The first `lookahead` of the others join the partners beside whom that costs less than waiting, in order.

Rule: a job that loads is never preempted, so no load is for nothing. A job that shares is a victim like
others, with what it has left alone; a device with two tenants is taken only from both. An incumbent that ends
or is preempted leaves the device to its co-tenant. A pair that loses is parted.

Rule: no job of a kind that was resumed and came out differently is preempted, nor is it parted from a
co-tenant. Of other kinds one that has proven its resumes costs less than one that has not.

Rule: what is expected of pairs that were never observed is in `record_slots.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Annotated, Final, NamedTuple

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import LACK_DEVICES, Plan, View, why_alone
from cotenant.controller.policies import earned, patient
from cotenant.controller.policies import toolkit as kit
from cotenant.controller.policies.base import Traits, Within
from cotenant.controller.policies.castor.cost import CastorCost, CostSlots, Set, best_share
from cotenant.controller.policies.entries import FIRST, PolicyEntry
from cotenant.controller.policies.record_slots import RecordSlots
from cotenant.controller.policies.resume_risk import MISMATCH_PRIOR, ResumeRisk
from cotenant.controller.policies.sharing import (
    ColocationParameters,
    CoTenant,
    ExpectedReleases,
    ShareableSlots,
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


def preempting_s(job: domain.Job, victims: Sequence[domain.Job], cost_of: patient.CostOf) -> float:
    """The seconds that a preemption costs; `cost_of`: those of one job that runs. A job that loses a
    reservation has loaded nothing: it loses the newcomer's time."""
    running = [victim for victim in victims if victim.phase is domain.RUNNING]
    pause_s = max((victim.estimate.pause_s for victim in running), default=0.0)
    return pause_s + len(victims) * patient.needs_s(job) + sum(map(cost_of, running))


def why_shares(
    now_s: float, job: domain.Job, share: Set, costs: Costs, slots: ShareableSlots
) -> domain.Reason:
    partners = [partner.slot.partner for partner in share.partners]
    names, split = ", ".join(dict.fromkeys(partner.job_id for partner in partners)), share.split
    is_measured = all(slots.interference(job, partner).source != "default" for partner in partners)
    pace = share.pace if is_measured else f"each step {share.pace:.2f} times as long, which is assumed"
    ends = job.told_left(now_s, share.together.ends_s)
    return domain.because(
        "costs-share", names, *costs.operands(), ends, split.size or "all", split.accumulation_steps, pace
    )


def why_preempts(victims: Sequence[domain.Job], costs: Costs) -> domain.Reason:
    return domain.because("costs-preempt", *costs.operands(), ", ".join(victim.job_id for victim in victims))


def why_waits(
    plan: Plan, job: domain.Job, present: CheapestFirst, wait_s: float, no_share: domain.Reason
) -> domain.Reason:
    """Explains by the three costs why a job waits. `no_share`: what `castor-cost` says of the partner that
    came nearest to a gain."""
    share_s, more = None, f"; {no_share}"
    if no_share.code == "sharing-costs":
        gains_s, waits_s, cost_s = (each for each in no_share.operands[1:] if isinstance(each, float))
        share_s, more = waits_s - gains_s + cost_s, ""
    room = kit.victims_for(plan, job, _longest_first(plan, job, present))
    preempt_s = None if room is None else preempting_s(job, room.victims, present.cost_s)
    return domain.because("costs-wait", *Costs(wait_s, share_s, preempt_s).operands(), more)


def _longest_first(plan: Plan, job: domain.Job, present: CheapestFirst) -> Iterator[domain.Job]:
    """Jobs that could be preempted, whether or not that would pay."""
    for _, one in kit.longest_first(plan.view):
        may_be = one.phase is domain.RUNNING and one.preemptible and not one.aged and not present.spares(one)
        if may_be and present.may_take(job, one) and one.spec.priority <= job.spec.priority:
            yield one


NO_DEVICES: Final = LACK_DEVICES | {"gains-nothing"}
"""Reasons for waiting because nothing is free and no job is to be preempted."""


class CotenantParameters(patient.PatientParameters, frozen=True, kw_only=True):
    """The parameters of `patient`, and those of policies that share."""

    lookahead: Annotated[int, Within(1)] = 16
    """Queued jobs tried for sharing per event."""
    part: bool = True
    """Part pairs whose measured benefit is negative, and do not make such pairs again."""
    observations: Annotated[int, Within(1)] = ColocationParameters().observations
    """Measurements, both ways, before a pair is parted or not made again."""
    earned: bool = True
    """Preempt only jobs that have earned it (`earned.py`)."""
    mismatch_prior: Annotated[float, Within(0.0, 1.0)] = MISMATCH_PRIOR
    """The share of kinds whose resume is taken to come out wrong before any was seen (`resume_risk.py`); with
    0 a resume has a price only where one has failed."""

    def sharing(self) -> ColocationParameters:
        return ColocationParameters(lookahead=self.lookahead, part=self.part, observations=self.observations)


class Sharing(CastorCost):
    """The second pass of the rule: `castor-cost` with the rule's reasons; for pairs never observed it uses
    each kind's own record."""

    name = "cotenant"

    def slots(self, plan: Plan) -> RecordSlots:
        return RecordSlots(plan, self.observations)

    def join(self, plan: Plan, job: domain.Job, slots: ShareableSlots) -> CoTenant | None:
        assert isinstance(slots, CostSlots)
        best = best_share(plan, job, slots)
        if best is None:
            return None
        costs = Costs(slots.wait_s(job), sharing_s(best), None)
        why = why_shares(plan.view.now_s, job, best, costs, slots)
        return CoTenant(best.devices, best.split.accumulation_steps, why)


class CheapestFirst(patient.Round):
    """The first pass of the rule: the order of `patient`; where it would preempt, a share that costs less
    comes first."""

    name = "cotenant"

    def __init__(
        self,
        view: View,
        asking: Iterable[domain.Job],
        parameters: CotenantParameters,
        soon: ExpectedReleases | None,
        sharing: Sharing,
    ) -> None:
        super().__init__(view, asking, parameters, soon)
        self._sharing, self._risk = sharing, ResumeRisk(view, parameters.mismatch_prior)
        self._must_earn = parameters.earned
        self._slots: RecordSlots | None = None
        self._seen_actions = 0
        """Number of the plan's actions when the slots were looked up."""
        self._unearned: list[patient.Spare] = []
        """Running jobs that may not be preempted yet, but by those who are exempt (`earned.py`)."""
        self._any_exempt = False
        """Some job that waits may preempt one of these."""

    def cost_s(self, victim: domain.Job) -> float:
        return patient.cost_s(victim) + self._risk.price_s(victim)

    def spares(self, job: domain.Job) -> bool:
        """Whether it never preempts a job although that could resume."""
        return self._risk.spares(job)

    @property
    def spared(self) -> kit.Spared:
        if not self._must_earn:
            return kit.Spared(self.spares)
        return kit.Spared(
            self.spares, if_possible=lambda job: not self.has_earned(job), stays_s=earned.stays_s
        )

    def has_earned(self, job: domain.Job) -> bool:
        """Whether a job that trains may be preempted once more, by `earned.py`."""
        return not self._must_earn or earned.earned_at_s(job) <= self._view.now_s

    def list_spare(self) -> list[patient.Spare]:
        """Those of `patient` that have earned their load; all, if a job that is exempt from this waits."""
        found, view = super().list_spare(), self._view
        self._unearned = [each for each in found if not self.has_earned(each[-1])]
        if not self._unearned:
            return found
        priority = min(each[-1].spec.priority for each in self._unearned)
        heads = view.queue.heads()
        self._any_exempt = bool(view.hp.waiting) or any(head.spec.priority > priority for head in heads)
        return found if self._any_exempt else [each for each in found if self.has_earned(each[-1])]

    def may_take(self, job: domain.Job, victim: domain.Job) -> bool:
        """Whether the victim has earned its load, or the waiting job is exempt from that."""
        return self.has_earned(victim) or earned.is_exempt(job, victim)

    def earns_s(self, least_s: float) -> float | None:
        """When the first job that one with `least_s` to its end would preempt has earned its load, if it has
        so much more left by then; None: no job will."""
        now_s = self._view.now_s
        times = ((earned.earned_at_s(job), spare_s) for _, _, spare_s, job in self._unearned)
        return min((at_s for at_s, spare_s in times if spare_s - (at_s - now_s) > least_s), default=None)

    def list_victims(self, plan: Plan, job: domain.Job) -> Iterator[domain.Job]:
        """Those of `patient` that have earned their load, and have more left than their resume costs as well;
        reservations put nothing at risk."""
        now_s, mine_s = plan.view.now_s, patient.needs_s(job)
        for one in super().list_victims(plan, job):
            if one.phase is domain.RUNNING:
                if self.spares(one):
                    continue
                if self._any_exempt and not self.may_take(job, one):
                    continue
                left_s = one.remaining_now_s(now_s) or 0.0
                if self._risk.price_s(one) and left_s - self.cost_s(one) <= mine_s:
                    continue
            yield one

    def why_not_yet(self, plan: Plan, job: domain.Job) -> domain.Reason | None:
        """Why the job preempts nobody yet, if that is because those whom it would preempt have not earned
        their load; with when they will have."""
        if next(self.list_victims(plan, job), None) is not None:
            return None
        now_s, mine_s = plan.view.now_s, patient.needs_s(job)
        later: list[tuple[float, int, domain.Job]] = []
        for _, number, spare_s, one in self._unearned:
            at_s = earned.earned_at_s(one)
            if spare_s - (at_s - now_s) > mine_s and not self.spares(one):
                later.append((at_s, number, one))
        later.sort()
        room = kit.find_room(plan, job, (one for *_, one in later))
        if room is None or not room.victims:
            return None
        last = max(room.victims, key=earned.earned_at_s)
        return domain.because("not-earned", last.job_id, earned.earned_at_s(last) - now_s)

    def settle(self, plan: Plan, job: domain.Job, room: kit.FreedDevices) -> None:
        if not room.victims:
            super().settle(plan, job, room)
            return
        slots = self._slots_of(plan)
        share = best_share(plan, job, slots) if why_alone(job) is None else None
        preempt_s = preempting_s(job, room.victims, self.cost_s)
        costs = Costs(slots.wait_s(job), None if share is None else sharing_s(share), preempt_s)
        if share is None or sharing_s(share) >= preempt_s:
            newcomer = why_preempts(room.victims, costs)
            why = self.why(plan.view, job, room.victims)
            kit.take_room(plan, job, room, self.name, why._replace(newcomer=newcomer))
            return
        shares = why_shares(plan.view.now_s, job, share, costs, slots)
        plan.share(job, share.devices, shares, share.split.accumulation_steps)
        slots.take(share.devices)
        self._seen_actions = len(plan.actions)

    def _slots_of(self, plan: Plan) -> RecordSlots:
        if self._slots is None or self._seen_actions != len(plan.actions):
            self._slots, self._seen_actions = self._sharing.slots(plan), len(plan.actions)
        return self._slots


class Cotenant(patient.Patient):
    """Remembers what `patient` does."""

    name = "cotenant"
    traits = Traits(preempts=True, shares=True, orders_by_size=True)

    def __init__(self, parameters: CotenantParameters) -> None:
        super().__init__(parameters)
        self._parameters, self._sharing = parameters, Sharing(parameters.sharing())

    def decide(self, view: View, event: ev.AnyEvent) -> domain.Decision:
        apart = self._sharing.part_after(view, event, lambda job: self._stays_together(view, job))
        if apart is not None:
            return domain.Decision(actions=(apart,))
        plan, is_partial = self.arrange(view, event)
        if plan is None:
            return domain.NOTHING
        waiting = plan.list_unplaced()
        if is_partial and isinstance(event, ev.JobArrived):  # Any other event may have left somebody alone.
            waiting = (job for job in view.queue.newcomers() if not plan.is_placed(job.job_id))
        self._sharing.admit(plan, waiting, kit.late_waiting(plan))
        return plan.decision()

    def _stays_together(self, view: View, job: domain.Job) -> bool:
        """Whether a job is not parted from a co-tenant, however slow the two are."""
        present = self.round(view, ())
        return not present.has_earned(job) or present.spares(job)

    def begin(self, view: View, event: ev.AnyEvent) -> Plan:
        """The next task of an array or a sweep starts on the devices that its sibling has left."""
        plan = Plan(view)
        if not (self._parameters.earned and isinstance(event, ev.AttemptEnded)):
            return plan
        task = earned.successor(view, event.job_id)
        if task is not None and (devices := plan.find_free(task)) is not None:
            plan.place(task, devices, domain.because("takes-place", event.job_id, len(devices)))
        return plan

    def wake(self, plan: Plan, present: patient.Round) -> domain.Wake | None:
        """Also when a job has earned its load that a waiting one would preempt."""
        soon, view = super().wake(plan, present), plan.view
        assert isinstance(present, CheapestFirst)
        if not kit.is_anybody_left(plan):
            return soon
        earns_s = present.earns_s(min(map(patient.needs_s, view.queue.heads()), default=inf))
        if earns_s is None or self._wake_up.comes_by(earns_s, view.now_s):
            return soon
        if soon is not None and soon.at_s <= earns_s:
            return soon
        return domain.Wake(at_s=earns_s, reason=domain.because("load-earned"))

    def round(
        self, view: View, asking: Iterable[domain.Job], soon: ExpectedReleases | None = None
    ) -> CheapestFirst:
        return CheapestFirst(view, asking, self._parameters, soon, self._sharing)

    def state_in_words(self, view: View) -> dict[str, str]:
        """What it does now, in a sentence each."""
        order = (
            "Short jobs go first; a job of unknown length is expected to need as long again as it has had, "
            "and five minutes at first, until its loops tell."
        )
        shares = (
            "A job shares devices, or takes those of a longer job that can resume, where that costs all "
            "concerned less time than waiting."
        )
        interruptions = (
            "What preemptions cost a job stays below a tenth of what it has trained, and a job that has "
            "loaded is left alone at least as long as its load took."
        )
        late = (
            "A job that first come, first served would have finished by now goes first, on a part of the "
            "devices, and is not preempted again."
        )
        found = {"order": order, "devices": shares}
        if self._parameters.earned:
            found["interruptions"] = interruptions
        return found | {"late jobs": late}

    def explain(self, view: View, job: domain.Job) -> domain.Reason:
        reason = super().explain(view, job)
        if (
            reason.code not in NO_DEVICES
            or job.estimate.remaining_s is None
            or not view.running.jobs_by_end()
        ):
            return reason
        plan, present = Plan(view), self.round(view, (job,))
        slots = self._sharing.slots(plan)
        no_share = why_alone(job) or (
            self._sharing.why_not(plan, job, slots)
            if slots
            else slots.closed or domain.because("sharing-nobody")
        )
        if no_share is None:
            return domain.because("next-event")
        not_yet = present.why_not_yet(plan, job)
        return not_yet or why_waits(plan, job, present, slots.wait_s(job), no_share)


COTENANT: Final = PolicyEntry(
    "short jobs first, shared or preempting where that costs less than waiting; late jobs get their turn",
    Cotenant,
    CotenantParameters.parse,
    group=FIRST,
    choose="you do not know better: the default, with or without expected times",
)
