"""cotenant: for which jobs, and when, the policy asks the rule of `costs.py`.

Source: ours, from `patient` (order, victims, gangs) and `castor-cost` (partners, waits). Waiting jobs stand
in the order of remaining service. A decision has two passes over those whom `patient` would ask:

1. In order: free devices; else, where a preemption would pay, the cheaper of it and of a share; else nothing.
2. The first `lookahead` of the others join the partners beside whom that costs less than waiting, in order.

Rule: a job that loads is never preempted, so no load is for nothing. A job that shares is a victim like
others, with what it has left alone; a device with two tenants is taken only from both. An incumbent that ends
or is preempted leaves the device to its co-tenant. A pair that loses is parted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cotenant.controller.domain import (
    NOTHING,
    AnyEvent,
    Decision,
    Job,
    Plan,
    Reason,
    View,
    because,
    why_alone,
)
from cotenant.controller.policies.base import is_possible
from cotenant.controller.policies.castor.cost import CastorCost, CostSlots, best_share
from cotenant.controller.policies.cotenant import costs as rule
from cotenant.controller.policies.cotenant.unseen import RecordSlots
from cotenant.controller.policies.entry import FIRST, PolicyEntry
from cotenant.controller.policies.patient import Patient, PatientParameters, Round, why_gain
from cotenant.controller.policies.toolkit import (
    ColocationParameters,
    CoTenant,
    ExpectedReleases,
    FreedDevices,
    ShareableSlots,
    take_room,
)

NO_DEVICES = ("gains-nothing", "first-no-devices", "behind-no-devices", "fragmented")
"""Reasons for waiting because nothing is free and no job is to be preempted."""


class CotenantParameters(PatientParameters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of `patient`, and those of policies that share."""

    lookahead: int = 64
    """Queued jobs tried for sharing per event."""
    part: bool = True
    """Part pairs whose measured benefit is negative, and do not make such pairs again."""
    observations: int = ColocationParameters().observations
    """Measurements, both ways, before a pair is parted or not made again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sharing()

    def sharing(self) -> ColocationParameters:
        return ColocationParameters(lookahead=self.lookahead, part=self.part, observations=self.observations)


class Sharing(CastorCost):
    """The second pass: `castor-cost` with the rule's reasons; for pairs never observed it uses each kind's
    own record."""

    name = "cotenant"

    def slots(self, plan: Plan) -> RecordSlots:
        return RecordSlots(plan, self.observations)

    def join(self, plan: Plan, job: Job, slots: ShareableSlots) -> CoTenant | None:
        assert isinstance(slots, CostSlots)
        best = best_share(plan, job, slots)
        if best is None:
            return None
        costs = rule.Costs(slots.wait_s(job), rule.sharing_s(best), None)
        return CoTenant(best.devices, best.split.accumulation_steps, rule.why_shares(best, costs))


class CheapestFirst(Round):
    """The first pass: the order of `patient`; where it would preempt, a share that costs less comes first."""

    name = "cotenant"

    def __init__(
        self,
        view: View,
        asking: Iterable[Job],
        parameters: PatientParameters,
        soon: ExpectedReleases | None,
        sharing: Sharing,
    ) -> None:
        super().__init__(view, asking, parameters, soon)
        self._sharing = sharing
        self._slots: RecordSlots | None = None
        self._seen_actions = 0
        """Number of the plan's actions when the slots were looked up."""

    def settle(self, plan: Plan, job: Job, room: FreedDevices) -> None:
        why = why_gain(plan.view, job, room.victims)
        if not room.victims:
            take_room(plan, job, room, self.name, why)
            return
        slots = self._slots_of(plan)
        share = best_share(plan, job, slots) if why_alone(job) is None else None
        costs = rule.Costs(
            slots.wait_s(job),
            None if share is None else rule.sharing_s(share),
            rule.preempting_s(job, room.victims),
        )
        if share is None or rule.sharing_s(share) >= rule.preempting_s(job, room.victims):
            newcomer = rule.why_preempts(room.victims, costs)
            take_room(plan, job, room, self.name, why._replace(newcomer=newcomer))
            return
        plan.share(job, share.devices, rule.why_shares(share, costs), share.split.accumulation_steps)
        slots.take(share.devices)
        self._seen_actions = len(plan.actions)

    def _slots_of(self, plan: Plan) -> RecordSlots:
        if self._slots is None or self._seen_actions != len(plan.actions):
            self._slots, self._seen_actions = self._sharing.slots(plan), len(plan.actions)
        return self._slots


class Cotenant(Patient):
    """Remembers what `patient` does."""

    name = "cotenant"
    preempts = True
    shares = True

    def __init__(self, parameters: CotenantParameters | None = None) -> None:
        parameters = parameters if parameters is not None else CotenantParameters()
        super().__init__(parameters)
        self._sharing = Sharing(parameters.sharing())

    def decide(self, view: View, event: AnyEvent) -> Decision:
        apart = self._sharing.part_after(view, event)
        if apart is not None:
            return Decision(actions=(apart,))
        plan, is_partial = self.arrange(view, event)
        if plan is None:
            return NOTHING
        newcomers = (job for job in view.newcomers() if not plan.is_placed(job.job_id))
        self._sharing.admit(plan, newcomers if is_partial else plan.unplaced(), waited_for(plan))
        return plan.decision()

    def round(self, view: View, asking: Iterable[Job], soon: ExpectedReleases | None = None) -> Round:
        return CheapestFirst(view, asking, self.parameters, soon, self._sharing)

    def explain(self, view: View, job: Job) -> Reason:
        reason = super().explain(view, job)
        if reason.code not in NO_DEVICES or job.remaining_s is None or not view.on_devices():
            return reason
        plan = Plan(view)
        slots = self._sharing.slots(plan)
        no_share = why_alone(job) or (
            self._sharing.why_not(plan, job, slots) if slots else slots.closed or because("sharing-nobody")
        )
        if no_share is None:
            return because("next-event")
        return rule.why_waits(plan, job, slots.wait_s(job), no_share)


def waited_for(plan: Plan) -> Job | None:
    """The first aged job that gets nothing by this plan, though the hosts could hold it: nobody behind it
    shares."""
    for job in plan.unplaced():
        if not job.aged:
            return None
        if is_possible(plan.view, job):
            return job
    return None


COTENANT: Final = PolicyEntry(
    "weighs sharing, preempting and waiting by what all concerned lose, and does what costs least",
    Cotenant,
    CotenantParameters.parse,
    group=FIRST,
    choose="jobs have expected times and resume, and leave devices half idle",
)
