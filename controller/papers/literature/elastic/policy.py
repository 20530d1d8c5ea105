"""Turns the number of devices that each job should have into actions. Rule: a change costs a save and a load,
so the policy makes one only where it helps. A waiting job gets free devices, up to its part; if they are too
few, jobs above their part make room: elastic ones shrink, others are preempted. Jobs grow only when no
waiting job could start, and only if they end earlier by more than the change takes. No job loses devices
before its lease is over, or while it loads.

Rule: an elastic job grows on the host it is on: its next checkpoint can be read there, and its workers stay
together. A gang that one host cannot hold is spread as other policies spread it, on its fewest devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Final

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.literature.elastic import division
from cotenant.controller.planning import Plan, View, is_possible, why_behind_aged, why_impossible
from cotenant.controller.policies.base import PolicyParameters, Traits, Within, is_quiet
from cotenant.controller.policies.entries import ELASTIC, PolicyEntry
from cotenant.controller.policies.ordered import QueueKey, arrival_key, remaining_key
from cotenant.controller.policies.toolkit import RemembersWakeUp

PLACED: Final = (domain.RUNNING, domain.LOADING)


class ElasticParameters(PolicyParameters, frozen=True, kw_only=True):
    min_lease_s: Annotated[float, Within(1.0, 1e6)] = 300.0
    """A job keeps its devices at least so long (`policy.resize_lease_s` holds as well)."""
    lease_factor: Annotated[float, Within(0.0, 1e3)] = 5.0
    """And at least so many times what it costs to load and to save."""

    def lease_s(self, job: domain.Job) -> float:
        return max(self.min_lease_s, self.lease_factor * (job.estimate.load_s + job.estimate.pause_s))


class Elastic(RemembersWakeUp):
    """A policy with a division, and the time for which it last asked to be woken."""

    traits = Traits(resizes=True)

    def __init__(
        self,
        name: str,
        divide: division.Division,
        parameters: ElasticParameters,
        key: QueueKey = arrival_key,
    ) -> None:
        """`divide`: how many devices each job is to have; `key`: of jobs that wait."""
        super().__init__()
        self.name, self.divide, self.queue_key, self.parameters = name, divide, key, parameters

    def claims(self, view: View) -> tuple[tuple[division.SizeClaim, ...], int]:
        """Claims of all jobs that have devices or could get some, and the number of devices."""
        gpus = sum(
            view.hosts[device.host_id].takes_work and device.healthy for device in view.devices.values()
        )
        placed = [job for job in view.running.jobs_by_end() if job.phase in PLACED]
        promised = [view.jobs[job_id] for job_id in view.holdings.claimants()]
        jobs = {job.job_id: job for job in (*placed, *promised, *self.jobs_in_reach(view, gpus))}
        return tuple(division.claim_of(job, view.now_s) for job in jobs.values()), gpus

    def jobs_in_reach(self, view: View, gpus: int) -> Iterable[domain.Job]:
        """Jobs of the queue that could get devices: as many as could have one each, where the division gives
        those behind them none."""
        return islice(view.queue.jobs_in_order(), gpus)

    def decide(self, view: View, event: ev.AnyEvent) -> domain.Decision:
        if is_quiet(view, event):
            return domain.NOTHING
        round_ = ElasticRound(self, view)
        round_.serve()
        self.ask_again(round_.plan, round_.look_again_s(), domain.because("elastic-look"))
        return round_.plan.decision()

    def explain(self, view: View, job: domain.Job) -> domain.Reason:
        waits = why_impossible(view, job) or why_behind_aged(view, job)
        if waits is not None:
            return waits
        part = ElasticRound(self, view).sizes.get(job.job_id, 0)
        return (
            domain.because("elastic-waits", part, self.name)
            if part
            else domain.because("elastic-none", self.name)
        )


class ElasticRound:
    """A decision of an elastic policy while it is made."""

    def __init__(self, policy: Elastic, view: View) -> None:
        self._policy, self._view = policy, view
        self.plan = Plan(view)
        self._again_s: list[float] = []
        claims, gpus = policy.claims(view)
        self._claims = {claim.job_id: claim for claim in claims}
        self.sizes = policy.divide(claims, gpus, view.now_s)
        self._waiting = [claim for claim in claims if claim.job.phase is domain.QUEUED]

    def look_again_s(self) -> float | None:
        """The earliest time at which something becomes possible by time alone."""
        return min(self._again_s, default=None)

    def serve(self) -> None:
        is_served = True
        for claim in self._waiting:
            if claim.job_id in self.sizes or claim.job.aged:
                is_served &= self._begin(claim)
            if (
                claim.job.aged
                and not self.plan.is_placed(claim.job_id)
                and is_possible(self._view, claim.job)
            ):
                return  # Nobody passes it.
        if is_served:
            for claim in self._growing():
                self._grow(claim)

    # --- Jobs that wait ----------------------------------------------------------------------------

    def _begin(self, claim: division.SizeClaim) -> bool:
        """Places a waiting job. Returns whether it has devices now, or others leave them for it."""
        job, wanted = claim.job, self.sizes.get(claim.job_id, claim.least)
        on_one = job.spec.nodes < 2
        devices = self._free_for(self.plan, job, claim, wanted) if on_one else self.plan.find_free(job)
        if on_one and (devices is None or len(devices) < wanted):
            trial = self._room_for(claim, wanted)
            if trial is not None:
                trial.actions[:0] = self.plan.actions
                self.plan = trial
                return True
        if devices is None:
            devices = self.plan.find_free(job)
        if devices is None:
            return False
        self.plan.place(job, devices, self._why_placed(claim, len(devices)))
        return True

    def _why_placed(self, claim: division.SizeClaim, devices: int) -> domain.Reason:
        return domain.because(
            "elastic-place", self._policy.name, self.sizes.get(claim.job_id, claim.least), devices
        )

    def _free_for(
        self, plan: Plan, job: domain.Job, claim: division.SizeClaim, wanted: int
    ) -> tuple[domain.DeviceId, ...] | None:
        """Free devices of one host: as many as it is to have, else the most that one has of what it takes."""
        best: tuple[int, int, str, tuple[domain.DeviceId, ...]] | None = None
        scheduling_class = self._view.queue.class_of(job)
        for host_id, host in self._view.hosts.items():
            if not host.takes_work or host_id in job.avoid or not plan.can_take(host_id, scheduling_class):
                continue
            for type in (scheduling_class.gpu_type,) if scheduling_class.gpu_type else plan.view.free.types:
                free = plan.free_devices(host_id, type)
                size = claim.cap(min(wanted, len(free)))
                if size and (best is None or (-size, len(free), host_id) < best[:3]):
                    best = (-size, len(free), host_id, tuple(free[:size]))
        return None if best is None else best[3]

    def _room_for(self, claim: division.SizeClaim, wanted: int) -> Plan | None:
        """The plan with a place for it, if jobs above their part make enough room."""
        trial = self.plan.fork()
        for other in self._above_their_part():
            self._make_room(trial, other, claim.job)
            devices = self._free_for(trial, claim.job, claim, wanted)
            if devices is not None and len(devices) == wanted:
                trial.place(claim.job, devices, self._why_placed(claim, wanted))
                return trial
        return None

    def _above_their_part(self) -> list[division.SizeClaim]:
        """Jobs that may lose devices now, furthest above their part first; notes when the others may."""
        found = []
        for claim in self._claims.values():
            job, held = claim.job, division.held_by(claim.job)
            above = held - self.sizes.get(claim.job_id, 0)
            if above > 0 and self._may_change(job):
                found.append((-above, -job.number, claim))
        return [claim for _, _, claim in sorted(found, key=lambda each: each[:2])]

    def _may_change(self, job: domain.Job) -> bool:
        if (
            job.phase is not domain.RUNNING
            or not job.preemptible
            or job.aged
            or self.plan.is_leaving(job.job_id)
        ):
            return False
        over_s = job.phase_since_s + self._policy.parameters.lease_s(job)
        if over_s > self._view.now_s + 1e-6:
            self._again_s.append(over_s)
            return False
        return True

    def _make_room(self, trial: Plan, claim: division.SizeClaim, newcomer: domain.Job) -> None:
        """Shrinks a job to its part, or preempts it if that is none."""
        job, part = claim.job, self.sizes.get(claim.job_id, 0)
        assert job.placement is not None
        name, held = self._policy.name, len(job.placement.devices)
        if part == 0:
            trial.suppose_left(job)
            trial.preempt(job, newcomer, domain.because("elastic-preempted", newcomer.job_id, name))
            return
        why = domain.because("elastic-shrinks", held, part, name, newcomer.job_id)
        trial.resize(job, job.placement.devices[:part], why)

    # --- Jobs that grow ----------------------------------------------------------------------------

    def _growing(self) -> list[division.SizeClaim]:
        """Jobs below their part that may be changed, the largest gain first."""
        found = []
        for claim in self._claims.values():
            held, part = division.held_by(claim.job), self.sizes.get(claim.job_id, 0)
            if 0 < held < part and claim.job.resize_to is None and self._may_change(claim.job):
                gain_s = claim.left_s * (1.0 / claim.speedup(held) - 1.0 / claim.speedup(part))
                found.append((-gain_s, claim.job.number, claim))
        return [claim for _, _, claim in sorted(found, key=lambda each: each[:2])]

    def _grow(self, claim: division.SizeClaim) -> None:
        job = claim.job
        assert job.placement is not None
        own, part = job.placement.devices, self.sizes[claim.job_id]
        known = self._view.devices
        hosts = {known[device].host_id for device in own}
        if len(hosts) > 1:
            return
        host_id, type = next(iter(hosts)), known[own[0]].type
        free = self.plan.free_devices(host_id, type)
        size = claim.cap(min(part, len(own) + len(free)))
        cost_s = job.estimate.load_s + job.estimate.pause_s
        if size <= len(own):
            return
        gain_s = claim.left_s * (1.0 / claim.speedup(len(own)) - 1.0 / claim.speedup(size))
        if gain_s <= cost_s:
            return
        devices = tuple(sorted((*own, *free[: size - len(own)])))
        why = domain.because("elastic-grows", len(own), size, self._policy.name, gain_s, cost_s)
        self.plan.resize(job, devices, why)


MAX_MIN: Final = PolicyEntry(
    "equal numbers of devices for elastic jobs; what a job cannot use goes to the others",
    lambda given: Elastic("max-min", division.max_min, given),
    ElasticParameters.parse,
    group=ELASTIC,
    choose="elastic jobs of many people are to get the same",
)

AFS_L: Final = PolicyEntry(
    "elastic jobs get devices one by one where these shorten most, short jobs first (AFS-L)",
    lambda given: Elastic("afs-l", division.afs_l, given, key=remaining_key),
    ElasticParameters.parse,
    group=ELASTIC,
    choose="jobs are elastic (--gpus MIN-MAX) and the mean completion time counts",
)

THEMIS: Final = PolicyEntry(
    "elastic jobs furthest behind their fair finish time first, as many devices as they can use (Themis)",
    lambda given: Elastic("themis", division.themis, given),
    ElasticParameters.parse,
    group=ELASTIC,
    choose="jobs are elastic and nobody is to fall behind an equal share",
)
