"""`pcs`, live: classes by size share the devices by weight, whole devices at a time.

Source: PCS (NSDI '24) section 3.1, with `wfq.py`; what differs from the paper is said here.

A class's share is rarely a whole number, and a gang is. So each class has an account in device-seconds: what
it was due minus what it held. A job of a class may begin, and jobs of classes above their share must make
room for it, if with it the class stays within its share, or if its credit pays for what exceeds the share
during one lease. Devices that no class can claim go to whoever waits, the class that is furthest behind
first. A share below one device becomes turns of at least a lease.

Rule: nobody loses devices before its lease is over (`min_lease_s`, or `lease_factor` times its load and
pause, whichever is longer), nobody while it loads, and within a class nobody to a later job.

Departs from the paper in that jobs are rigid: each runs on all of its gang, an elastic one on the fewest
devices that it takes, so there are no caps, and `zeta_min` and `delta` change nothing here (`elastic=true`
gives elastic jobs other sizes while they train: `elastic.py`). Size is training
time x GPUs as estimated, what was done included; a job of unknown length belongs to the last class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from cotenant.controller.domain import NOTHING, Decision, DeviceId, Job, Phase, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.pcs.standing import Standing, is_preemptible_now, placed_jobs, size_gpu_s
from cotenant.controller.papers.pcs.wfq import WfqConfig
from cotenant.controller.planning import Plan, View, is_possible, why_behind_aged, why_impossible
from cotenant.controller.policies.base import PolicyParameters, Traits, Within, is_quiet
from cotenant.controller.policies.toolkit import RemembersWakeUp, Why, find_room, take_room

CREDIT_S_MAX: Final = 86_400.0
"""An account holds at most so many seconds of the whole cluster, owed or owing."""
ROUNDING: Final = 1e-6


class PcsParameters(PolicyParameters, frozen=True, kw_only=True):
    """A configuration (`cotenant policy tune pcs` finds some), and the shortest turn."""

    thresholds_gpu_s: str = "3600,86400"
    """Where classes end, in GPU-seconds: rising, one fewer than classes."""
    weights: str = "0.6,0.3,0.1"
    """Guaranteed parts of the cluster, the class of the smallest jobs first."""
    zeta_min: float = 0.01
    delta: float = 0.01
    min_lease_s: Annotated[float, Within(1.0, 1e6)] = 120.0
    lease_factor: Annotated[float, Within(0.0, 1e3)] = 5.0
    """A turn lasts at least so many times what it costs to load and to save."""
    elastic: bool = False
    """Elastic jobs get more and fewer devices (`elastic.py`), in place of turns of whole gangs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config()

    def config(self) -> WfqConfig:
        """Returns the configuration of the classes. Raises ValueError."""
        return WfqConfig.parse(msgspec.structs.asdict(self))

    def lease_s(self, job: Job) -> float:
        return max(self.min_lease_s, self.lease_factor * (job.estimate.load_s + job.estimate.pause_s))


class Accounts(msgspec.Struct, frozen=True):
    """What classes were due and did not get, in device-seconds at one time, and its rate of change."""

    at_s: float = 0.0
    credit_gpu_s: tuple[float, ...] = ()
    gpus_due: tuple[float, ...] = ()
    """Due minus held, since then."""

    def now(self, now_s: float, classes: int) -> list[float]:
        if len(self.credit_gpu_s) != classes:  # Another configuration: everybody begins anew.
            return [0.0] * classes
        seconds = now_s - self.at_s
        return [credit + due * seconds for credit, due in zip(self.credit_gpu_s, self.gpus_due, strict=True)]

    def settle(self, now_s: float, due: Sequence[float], is_empty: Sequence[bool], gpus: int) -> Accounts:
        """The accounts of each class from now on; a class without jobs saves nothing up."""
        most, credits_gpu_s = CREDIT_S_MAX * gpus, self.now(now_s, len(due))
        kept = (
            0.0 if empty else min(most, max(-most, credit))
            for credit, empty in zip(credits_gpu_s, is_empty, strict=True)
        )
        return Accounts(now_s, tuple(kept), tuple(due))


class ClassTotals(NamedTuple):
    """What each class is due, holds and whether it has no jobs; and the number of devices."""

    shares: Sequence[float]
    held: Sequence[int]
    is_empty: Sequence[bool]
    gpus: int


class KeepsAccounts(RemembersWakeUp, ABC):
    """Remembers the accounts of classes, and when it wants to decide again."""

    _accounts = Accounts()

    @abstractmethod
    def totals(self, view: View) -> ClassTotals:
        """Where each class stands now."""

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        super().observe(view, event, decision)
        if is_quiet(view, event) and not decision.actions:
            return
        shares, held, is_empty, gpus = self.totals(view)
        due = [share - has for share, has in zip(shares, held, strict=True)]
        self._accounts = self._accounts.settle(view.now_s, due, is_empty, gpus)

    def save(self) -> bytes:
        return msgspec.msgpack.encode((super().save(), self._accounts))

    def load(self, state: bytes) -> None:
        if state:
            look, self._accounts = msgspec.msgpack.decode(state, type=tuple[bytes, Accounts])
            super().load(look)


class Pcs(KeepsAccounts):
    """Weighted fair queueing of rigid gangs."""

    name = "pcs"
    traits = Traits(preempts=True)

    def __init__(self, parameters: PcsParameters) -> None:
        super().__init__()
        self.parameters, self._config = parameters, parameters.config()

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return (float(self._config.class_of(size_gpu_s(job, job.phase_since_s))),)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.queue or is_quiet(view, event):
            return NOTHING
        plan, round_ = Plan(view), ClassRound(self, view)
        if round_.place_aged(plan):
            claimed = round_.claim(plan)
            if claimed:
                round_.fill(plan)
        self.ask_again(plan, round_.look_again_s(), because("wfq-look"))
        return plan.decision()

    def totals(self, view: View) -> ClassTotals:
        standing = Standing(self._config, view)
        return ClassTotals(standing.shares, standing.held, standing.is_empty, standing.gpus)

    def credits(self, now_s: float) -> list[float]:
        return self._accounts.now(now_s, len(self._config.weights))

    def state_in_words(self, view: View) -> dict[str, str]:
        """Describes each class of jobs: which jobs are in it, what it is due, what it holds, and what it is
        owed."""
        standing, config = Standing(self._config, view), self._config
        edges = ["0", *(f"{each:,.0f}" for each in config.thresholds_gpu_s), "any"]
        return {
            f"class {number + 1}": (
                f"jobs of {edges[number]} to {edges[number + 1]} GPU-seconds; weight {weight:.3g}, "
                f"due {due:.3g} of {standing.gpus} devices, holds {held}, owed {credit:,.0f} GPU-seconds"
            )
            for number, (weight, due, held, credit) in enumerate(
                zip(config.weights, standing.shares, standing.held, self.credits(view.now_s), strict=True)
            )
        }

    @property
    def config(self) -> WfqConfig:
        return self._config

    def explain(self, view: View, job: Job) -> Reason:
        waits = why_impossible(view, job) or why_behind_aged(view, job)
        return waits or ClassRound(self, view).why(job)


class ClassRound:
    """A decision while it is made: who claims devices, who loses them, and what is left for others."""

    def __init__(self, policy: Pcs, view: View) -> None:
        self._view, self._parameters = view, policy.parameters
        self._standing = Standing(policy.config, view)
        self._credits = policy.credits(view.now_s)
        self._again_s: list[float] = []

    def look_again_s(self) -> float | None:
        """When something could be claimed that cannot be now, if nothing else happens."""
        return min(self._again_s, default=None)

    def place_aged(self, plan: Plan) -> bool:
        """Places aged jobs and returns whether others may start: nobody passes an aged job that waits for
        devices."""
        for job in self._standing.aged:
            devices = plan.find_free(job)
            if devices is not None:
                plan.place(job, devices, because("free-devices-in-order", Pcs.name, len(devices)))
                self._standing.held[self._standing.class_of(job)] += len(devices)
            elif is_possible(self._view, job):
                return False
        return True

    def claim(self, plan: Plan) -> bool:
        """Give classes what they are due, the one that is furthest behind first; False: devices are kept back
        for one whose first job must wait for enough of them."""
        for number in self._classes_by_need():
            lane = self._standing.lanes[number]
            while (job := lane.first()) is not None and self._can_claim(number, job):
                if not self._take(plan, number, job):
                    if is_possible(self._view, job):
                        return False
                    break
                lane.advance()
        return True

    def fill(self, plan: Plan) -> None:
        """Gives devices that no class claims to jobs that fit, in order within each class."""
        for number in self._classes_by_need():
            lane = self._standing.lanes[number]
            while plan.any_free() and (job := lane.first()) is not None:
                devices = plan.find_free(job)
                if devices is None:
                    break
                self._place(plan, number, job, devices)
                lane.advance()

    def why(self, job: Job) -> Reason:
        """Why a job waits that could otherwise run."""
        standing = self._standing
        number = standing.class_of(job)
        due, held = standing.shares[number], standing.held[number]
        first = standing.lanes[number].first()
        if first is not None and first.number != job.number and not job.aged:
            return because("wfq-behind", first.job_id, number + 1, due, held)
        if not self._can_claim(number, job):
            return because("wfq-no-credit", number + 1, due, held, job.spec.gpus_min)
        return because("wfq-waits", number + 1, due, held, job.spec.gpus_min)

    def _classes_by_need(self) -> list[int]:
        """Classes by how long ago they should have had what they are owed."""
        shares = self._standing.shares
        owed_s = [credit / max(share, 1e-9) for credit, share in zip(self._credits, shares, strict=True)]
        return sorted(range(len(owed_s)), key=lambda number: (-owed_s[number], number))

    def _can_claim(self, number: int, job: Job) -> bool:
        over, lease_s = self._standing.excess(number, job.spec.gpus_min), self._parameters.lease_s(job)
        lacks_gpu_s = over * lease_s - self._credits[number]
        if over <= ROUNDING or lacks_gpu_s <= ROUNDING:
            return True
        rate = self._standing.shares[number] - self._standing.held[number]
        if rate > ROUNDING:
            self._again_s.append(self._view.now_s + lacks_gpu_s / rate)
        return False

    def _take(self, plan: Plan, number: int, job: Job) -> bool:
        devices = plan.find_free(job)
        if devices is not None:
            self._place(plan, number, job, devices)
            return True
        room = find_room(plan, job, self._jobs_over_share(plan, number))
        if room is None:
            return False
        standing, victims = self._standing, room.victims
        names = ", ".join(victim.job_id for victim in victims)
        over = {victim.job_id: standing.excess(standing.class_of(victim), 0) for victim in victims}
        due, held = standing.shares[number], standing.held[number]
        why = Why(
            because("wfq-preempts", number + 1, due, held, names),
            {
                victim.job_id: because(
                    "wfq-preempted",
                    job.job_id,
                    standing.class_of(victim) + 1,
                    over[victim.job_id],
                    number + 1,
                )
                for victim in victims
            },
        )
        take_room(plan, job, room, self._place_name(number), why)
        for victim in victims:
            standing.held[standing.class_of(victim)] -= victim.spec.gpus_min
        self._count(number, job)
        return True

    def _jobs_over_share(self, plan: Plan, number: int) -> Iterator[Job]:
        """Jobs of classes that hold more than they are due, those furthest above first; in a class the last
        to come. Notes the end of a lease or credit that still lasts."""
        standing, found = self._standing, []
        for job in placed_jobs(self._view):
            theirs = standing.class_of(job)
            above = standing.excess(theirs, 0)
            if theirs == number or above <= ROUNDING:
                continue
            if self._credits[theirs] > ROUNDING:  # It has saved up for this.
                self._again_s.append(self._view.now_s + self._credits[theirs] / above)
                continue
            lease_s = self._parameters.lease_s(job)
            if is_preemptible_now(plan, job, lease_s):
                found.append((self._credits[theirs] / max(standing.shares[theirs], 1e-9), -job.number, job))
            elif job.phase is Phase.RUNNING and job.preemptible and not plan.is_leaving(job.job_id):
                self._again_s.append(job.phase_since_s + lease_s)
        found.sort()
        return (job for _, _, job in found)

    def _place(self, plan: Plan, number: int, job: Job, devices: tuple[DeviceId, ...]) -> None:
        due, held = self._standing.shares[number], self._standing.held[number]
        plan.place(job, devices, because("wfq-place", number + 1, due, held, len(devices)))
        self._count(number, job)

    def _count(self, number: int, job: Job) -> None:
        """A class pays for one lease of what exceeds its share."""
        over = self._standing.excess(number, job.spec.gpus_min)
        self._credits[number] -= max(0.0, min(over, job.spec.gpus_min)) * self._parameters.lease_s(job)
        self._standing.held[number] += job.spec.gpus_min

    def _place_name(self, number: int) -> str:
        return f"{Pcs.name} class {number + 1}"
