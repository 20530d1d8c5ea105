"""What all policies that share have in common: free devices first, then newcomers; pairs that lose part.

Rule: such a policy says only whom a waiting job may join (`join`). When to ask it, for how many jobs, what an
aged job keeps back and what happens to a pair that was measured to lose is the same for all of them. At
most `lookahead` queued jobs are tried per event: a scan of the whole queue costs more the longer it is.

A pair that turns out to lose parts: one of the two saves its state and goes on later. Source: ours, from
Castor's Theorem 1 and what is measured while two jobs share (the paper decides once, by
predicted ratios, and keeps to it). Only observations of this kind of pair, both ways, part a pair; a model's
prediction does not. It takes several observations, or one that shows a loss beyond the interval that a
trained model had predicted: then chance is no explanation for it.

What loses: under every policy a pair that gets less work done than taking turns would (`loses`); that is a
fact about the two kinds of jobs, and such a pair is not made again. Under `castor` and `castor-cost`, which
judge pairs when they make them, also one that loses by Theorem 1 with what is left of both now: what paid
when the newcomer came need not pay any more. (Policies that make pairs unseen would make and part them
without end.)

It is parted only if that helps: with the measured ratios, the average completion time of the two if they go
on together is compared with that if one stops now, saves, and goes on when the other has ended; its pause
and load count twice, since lengths are estimates and a change for little is no gain. Which one stops: of
those that may be preempted the one whose stopping gives the better average (the longer, if their loads are
alike), the later arrival if both are equal. Where a length is not known, the later arrival stops.

Two jobs that were parted do not share again, whatever is measured later (`ShareableSlots`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Annotated, NamedTuple

from cotenant.controller.domain import NOTHING, Decision, DeviceId, Job, Phase, Preempt, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.knowledge import OBSERVATIONS, is_beyond, loses
from cotenant.controller.performance import Interference, shared_ends
from cotenant.controller.planning import LACK_DEVICES, Plan, View, why_alone, why_waiting
from cotenant.controller.policies.base import QUIET, PolicyParameters, Stateless, Traits, Within
from cotenant.controller.policies.sharing.shareable_slots import ShareableSlots
from cotenant.controller.policies.toolkit import Spares, late_waiting, place_in_order, spare_nobody


def parting(
    view: View,
    event: ev.ProgressSeen | ev.PairObserved,
    observations: int,
    *,
    by_theorem: bool,
    spares: Spares = spare_nobody,
) -> Preempt | None:
    """Whom to stop after an observation, if the pair it is about loses. `spares`: jobs that are not stopped
    although they could resume."""
    job_id = event.job_id if isinstance(event, ev.ProgressSeen) else event.first
    job = view.jobs.get(job_id)
    if job is None:
        return None
    for partner in co_tenants(view, job):
        found = part(view, job, partner, observations, by_theorem=by_theorem, spares=spares)
        if found is not None:
            return found
    return None


def co_tenants(view: View, job: Job) -> list[Job]:
    """Jobs that train on a device of a job that trains, by arrival."""
    if job.phase is not Phase.RUNNING or job.placement is None:
        return []
    here = {other for device_id in job.placement.devices for other in view.holdings.tenants(device_id)}
    others = [view.jobs[job_id] for job_id in here if job_id != job.job_id]
    return sorted((o for o in others if o.phase is Phase.RUNNING), key=lambda other: other.number)


def part(
    view: View,
    job: Job,
    partner: Job,
    observations: int,
    *,
    by_theorem: bool,
    spares: Spares = spare_nobody,
) -> Preempt | None:
    """The one of two jobs that share which should stop, if the pair loses as measured."""
    xi = view.pairs.interference(job, partner)
    foretold = _surprise(view, job, partner, xi, observations)
    is_lost = foretold is not None or loses(xi, observations)
    if not is_lost and not (by_theorem and xi.both and xi.count >= observations):
        return None
    able = [one for one in (job, partner) if one.preemptible and not one.aged and not spares(one)]
    if not able:
        return None
    together_s = _together_s(view, job, partner, xi)
    if together_s is None:
        if not is_lost:
            return None
        return _stop(max(able, key=lambda one: one.number), job, partner, xi, foretold)
    apart = {one.number: _apart_s(view, one, partner if one is job else job) for one in able}
    stops = min(able, key=lambda one: (apart[one.number], -one.number))
    if together_s <= apart[stops.number]:
        return None
    if is_lost:
        return _stop(stops, job, partner, xi, foretold)
    return _stop(stops, job, partner, xi, ends_s=(together_s, apart[stops.number]))


def _surprise(view: View, job: Job, partner: Job, xi: Interference, observations: int) -> Interference | None:
    """The prediction, if even few measurements show a loss beyond the prediction's interval."""
    if not loses(xi, 1) or loses(xi, observations):
        return None
    foretold = view.pairs.expect(job, partner)
    return foretold if is_beyond(xi, foretold) else None


def alone_s(view: View, job: Job) -> float | None:
    """Seconds that a job would still train without its co-tenant, at its sub-batch; None if not known."""
    left_s = job.known_left_s(view.now_s)
    if left_s is None or job.placement is None:
        return None
    return left_s * job.placement.slowdown


def _together_s(view: View, job: Job, partner: Job, xi: Interference) -> float | None:
    """Average completion time, from now, if both go on."""
    mine_s, theirs_s = alone_s(view, job), alone_s(view, partner)
    if mine_s is None or theirs_s is None:
        return None
    return sum(shared_ends(mine_s, theirs_s, xi.first, xi.second)) / 2


def _apart_s(view: View, stops: Job, stays: Job) -> float:
    """The mean completion time if one job stops now and goes on, at its whole batch, when the other has
    ended."""
    stays_s, left_s = alone_s(view, stays), stops.remaining_now_s(view.now_s)
    assert stays_s is not None and left_s is not None
    change_s = 2.0 * (stops.estimate.pause_s + stops.estimate.load_s)
    return (stays_s + stays_s + change_s + left_s) / 2


def _stop(
    stops: Job,
    job: Job,
    partner: Job,
    xi: Interference,
    foretold: Interference | None = None,
    *,
    ends_s: tuple[float, float] | None = None,
) -> Preempt:
    other = partner if stops is job else job
    of = (lambda each: each) if stops is job else Interference.swap
    ratios = (of(xi).first, of(xi).second)
    if ends_s is not None:
        reason = because("parted-theorem", other.job_id, *ratios, *ends_s)
    elif foretold is not None and foretold.margins is not None:
        expected = of(foretold)
        most = (expected.first + (expected.margin(0) or 0.0), expected.second + (expected.margin(1) or 0.0))
        reason = because("parted-surprise", other.job_id, *ratios, *most)
    else:
        reason = because("parted-loss", other.job_id, *ratios)
    return Preempt(job_id=stops.job_id, reason=reason)


TOGETHER = 64
"""How many waiting jobs `Colocation.expect` gets at once."""


class CoTenant(NamedTuple):
    """Where a waiting job joins others, and how."""

    devices: tuple[DeviceId, ...]
    accumulation_steps: int
    reason: Reason


class ColocationParameters(PolicyParameters, frozen=True, kw_only=True):
    """Named options of every policy that shares."""

    lookahead: Annotated[int, Within(1)] = 64
    """Queued jobs tried for sharing per event."""
    part: bool = True
    """Part pairs whose measured benefit is negative, and do not make such pairs again; false is what the
    papers do."""
    observations: Annotated[int, Within(1)] = OBSERVATIONS
    """Measurements, both ways, before a pair is parted or not made again."""


class Colocation(Stateless, ABC):
    """The common part of policies that share."""

    name: str
    traits = Traits(shares=True, orders_by_size=True)
    parts_by_theorem = False
    """Whether pairs are judged when they are made, and so are parted by Theorem 1 as well."""

    queue_key: Callable[[Job], tuple[float, ...]]

    def __init__(self, parameters: ColocationParameters) -> None:
        self._options = parameters

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

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        apart = self.part_after(view, event)
        if apart is not None:
            return Decision(actions=(apart,))
        if type(event) in QUIET or not view.queue:
            return NOTHING
        plan = Plan(view)
        place_in_order(plan, self.name, strict=False)
        self.admit(plan, plan.list_unplaced(), late_waiting(plan))
        return plan.decision()

    def part_after(self, view: View, event: ev.AnyEvent, spares: Spares = spare_nobody) -> Preempt | None:
        """Who has to stop, of a pair that was just observed to lose; none of those that are spared."""
        if self.observations is None or not isinstance(event, ev.ProgressSeen | ev.PairObserved):
            return None
        by_theorem = self.parts_by_theorem
        return parting(view, event, self.observations, by_theorem=by_theorem, spares=spares)

    def admit(self, plan: Plan, waiting: Iterable[Job], waited_for: Job | None) -> None:
        """Try the first of these jobs in order; none behind an aged one, whose devices a newcomer would
        hold."""
        first = islice(waiting, self._options.lookahead)
        batch = list(islice(first, TOGETHER))
        slots = self.slots(plan) if batch else None  # It looks at every tenant.
        while batch and slots:
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
            batch = list(islice(first, TOGETHER))

    def slots(self, plan: Plan) -> ShareableSlots:
        return ShareableSlots(plan, self.observations)

    @property
    def observations(self) -> int | None:
        """How many observations prove a loss; None: losses do not matter."""
        return self._options.observations if self._options.part else None

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in LACK_DEVICES:
            return reason
        plan = Plan(view)
        slots = self.slots(plan)
        if not slots and slots.closed is None:
            return reason
        told = why_alone(job) or (self.why_not(plan, job, slots) if slots else slots.closed) or reason
        other = (
            slots.find_of_another_user(job) if told.code in ("sharing-nobody", "sharing-too-few") else None
        )
        return because("sharing-uid", other.job_id) if other is not None else told


def nobody(slots: ShareableSlots) -> Reason:
    """No slot suits the job at all."""
    return slots.closed or because("sharing-nobody")
