"""What all policies that share have in common: free devices first, then newcomers; pairs that lose part.

Rule: such a policy says only whom a waiting job may join (`join`). When to ask it, for how many jobs, what an
aged job keeps back and what happens to a pair that was measured to lose is the same for all of them. At
most `lookahead` queued jobs are tried per event: a scan of the whole queue costs more the longer it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, Self

import msgspec

from cotenant.controller.domain import (
    NOTHING,
    OBSERVATIONS,
    AnyEvent,
    Decision,
    DeviceId,
    Job,
    PairObserved,
    Plan,
    Preempt,
    ProgressSeen,
    Reason,
    View,
    because,
    why_alone,
)
from cotenant.controller.policies.base import QUIET, Parameters, Stateless, why_waiting
from cotenant.controller.policies.toolkit.in_order import place_in_order
from cotenant.controller.policies.toolkit.parting import parting
from cotenant.controller.policies.toolkit.shareable_slots import ShareableSlots

TOGETHER = 64
"""How many waiting jobs `Colocation.expect` gets at once."""


class CoTenant(NamedTuple):
    """Where a waiting job joins others, and how."""

    devices: tuple[DeviceId, ...]
    accumulation_steps: int
    reason: Reason


class ColocationParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named options of every policy that shares."""

    lookahead: int = 64
    """Queued jobs tried for sharing per event."""
    part: bool = True
    """Part pairs whose measured benefit is negative, and do not make such pairs again; false is what the
    papers do."""
    observations: int = OBSERVATIONS
    """Measurements, both ways, before a pair is parted or not made again."""

    def __post_init__(self) -> None:
        for name, value in (("lookahead", self.lookahead), ("observations", self.observations)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @classmethod
    def parse(cls, parameters: Parameters) -> Self:
        """Raises ValueError for a wrong name, type or range."""
        return msgspec.convert(parameters, cls, strict=False)

    def as_parameters(self) -> Parameters:
        return msgspec.structs.asdict(self)


class Colocation(Stateless, ABC):
    """The common part of policies that share."""

    name: str
    shares = True
    parts_by_theorem = False
    """Whether pairs are judged when they are made, and so are parted by Theorem 1 as well."""

    def __init__(self, parameters: ColocationParameters) -> None:
        self._options = parameters

    @abstractmethod
    def queue_key(self, job: Job) -> tuple[float, ...]: ...

    def expect(self, plan: Plan, jobs: Sequence[Job], slots: ShareableSlots) -> Collection[int]:
        """Called before `join` of these jobs, in this order: what is cheaper for all of them at once can be
        worked out now. Slots may be taken in between. Returns the numbers of those who may find somebody:
        the others are not asked about."""
        return {job.number for job in jobs}

    @abstractmethod
    def join(self, plan: Plan, job: Job, slots: ShareableSlots) -> CoTenant | None:
        """Whom a job joins that free devices alone cannot hold; None: no job. Asked for many jobs."""

    @abstractmethod
    def why_not(self, plan: Plan, job: Job, slots: ShareableSlots) -> Reason | None:
        """Why it joins no job, None if it would. Asked for one job, by a person."""

    def decide(self, view: View, event: AnyEvent) -> Decision:
        apart = self.part_after(view, event)
        if apart is not None:
            return Decision(actions=(apart,))
        if type(event) in QUIET or not view.queued_count():
            return NOTHING
        plan = Plan(view)
        while (waited_for := place_in_order(plan, self.name, strict=False)) is not None:
            self.admit(plan, plan.unplaced(), waited_for)
            if not plan.is_placed(waited_for.job_id):
                break
        else:
            self.admit(plan, plan.unplaced(), None)
        return plan.decision()

    def part_after(self, view: View, event: AnyEvent) -> Preempt | None:
        """Who has to stop, of a pair that was just observed to lose."""
        if self.observations is None or not isinstance(event, ProgressSeen | PairObserved):
            return None
        return parting(view, event, self.observations, by_theorem=self.parts_by_theorem)

    def admit(self, plan: Plan, waiting: Iterable[Job], waited_for: Job | None) -> None:
        """Try the first of these jobs in order; none behind an aged one, whose devices a newcomer would
        hold."""
        slots = self.slots(plan)
        if not slots:
            return
        first = islice(waiting, self._options.lookahead)
        while batch := list(islice(first, TOGETHER)):
            able = self.expect(plan, batch, slots)
            for job in batch:
                may_join = job.number in able and why_alone(job) is None
                co_tenant = self.join(plan, job, slots) if may_join else None
                if co_tenant is not None:
                    plan.share(job, co_tenant.devices, co_tenant.reason, co_tenant.accumulation_steps)
                    slots.take(co_tenant.devices)
                    if not slots:
                        return
                elif job is waited_for:
                    return

    def slots(self, plan: Plan) -> ShareableSlots:
        return ShareableSlots(plan, self.observations)

    @property
    def observations(self) -> int | None:
        """How many observations prove a loss; None: losses do not matter."""
        return self._options.observations if self._options.part else None

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in ("first-no-devices", "behind-no-devices", "fragmented"):
            return reason
        plan = Plan(view)
        slots = self.slots(plan)
        if not slots and slots.closed is None:
            return reason
        told = why_alone(job) or (self.why_not(plan, job, slots) if slots else slots.closed) or reason
        other = slots.of_another_user(job) if told.code in ("sharing-nobody", "sharing-too-few") else None
        return because("sharing-uid", other.job_id) if other is not None else told


def nobody(slots: ShareableSlots) -> Reason:
    """No slot suits the job at all."""
    return slots.closed or because("sharing-nobody")
