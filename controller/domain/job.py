"""The ledger's record of a job: where it stands, what it has reached, what is expected of it, what it took.

Rule: a record only answers questions. Only the ledger changes it (`controller/engine/state/records.py`);
`tests/house/test_records.py` looks for assignments.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.controller.domain import budget_use, job_parts, job_spec, lengths, outcomes, reasons
from cotenant.controller.domain.ids import AttemptNo, HostId, JobId
from cotenant.controller.domain.lifecycle import ENDED, LEAVING, LOADING, ON_DEVICES, RUNNING, Phase
from cotenant.controller.domain.placement import CheckpointRecord, Placement
from cotenant.controller.performance import Gang, perf, sized_gang

LINDY_SPREAD: Final = 9.0


class Job(msgspec.Struct, kw_only=True):
    """The record of a job. Only the ledger writes it."""

    spec: job_spec.JobSpec
    number: int
    """Order of arrival; ties break by this."""
    submitted_s: float
    epoch: str = ""
    """Token of the epoch in which it arrived."""
    phase: Phase = Phase.QUEUED
    phase_since_s: float = 0.0
    reason: reasons.Reason
    rank: int = 0
    """Waiting jobs are ordered by this first, the lowest before the others: priority, and fair share."""
    aged: bool = False
    placement: Placement | None = None
    resize_to: Placement | None = None
    """Where it goes on when its processes have left (cause `resized`): it has a claim on these devices."""
    waits_for: tuple[JobId, ...] = ()
    """Reserved: the victims that still have to leave its devices."""
    attempt: job_parts.CurrentAttempt = msgspec.field(default_factory=job_parts.CurrentAttempt)
    attempts_taken: AttemptNo = AttemptNo(0)
    """Numbers up to this one are in use on hosts, by attempts of a history that this journal has lost."""
    strays: tuple[HostId, ...] = ()
    """Hosts that still end such an attempt of this job."""
    progress: job_parts.JobProgress = msgspec.field(default_factory=job_parts.JobProgress)
    measured: job_parts.JobMeasurements = msgspec.field(default_factory=job_parts.JobMeasurements)
    estimate: job_parts.JobEstimate = msgspec.field(default_factory=job_parts.JobEstimate)
    spent: job_parts.TimeSpent = msgspec.field(default_factory=job_parts.TimeSpent)
    budget: budget_use.BudgetUse | None = None
    """None: it has none (`--budget`), or has not been looked at yet."""
    counts: job_parts.JobCounters = msgspec.field(default_factory=job_parts.JobCounters)
    co_tenants: tuple[JobId, ...] = ()
    """Every job that has shared a device with this one."""
    outgrown: bool = False
    """It needed more memory than was planned for it, alone on its devices: it runs alone, without a limit."""
    first_start_s: float | None = None
    ended_s: float | None = None
    failed_end: outcomes.FailedEnd | None = None
    """Its last failure of the infrastructure."""
    avoid: tuple[HostId, ...] = ()
    """Hosts of its last infrastructure failures: tried last."""
    visited: tuple[HostId, ...] = ()
    """Hosts on which it ever started: they keep files of it until it has ended."""
    workdir_missing: tuple[HostId, ...] = ()
    promise: job_parts.PromiseState = ""
    promise_why: reasons.Reason | None = None
    """Why it was broken, or is void."""

    @property
    def job_id(self) -> JobId:
        return self.spec.job_id

    @property
    def batch_size(self) -> int | None:
        """The batch size per worker: as the user says it, else as it was seen; None: not known, so the batch
        stays whole."""
        return self.measured.batch.rows if self.spec.batch_size is None else self.spec.batch_size

    @property
    def gang(self) -> Gang:
        """The gang that it runs as, or asks for."""
        if self.placement is None or not self.attempt.hosts_left:
            return self.spec.gang
        return sized_gang(len(self.placement.devices), len(self.attempt.hosts_left))

    @property
    def durable_step(self) -> int:
        step = 0
        for (
            checkpoint
        ) in self.progress.checkpoints:  # A loop costs less than `max`, and jobs have a few at most.
            if checkpoint.step > step:
                step = checkpoint.step
        return step

    @property
    def newest_checkpoint(self) -> CheckpointRecord | None:
        """The furthest of the last attempt that has any: from there it goes on."""
        newest: CheckpointRecord | None = None
        for each in self.progress.checkpoints:
            if newest is None or (each.attempt, each.step) > (newest.attempt, newest.step):
                newest = each
        return newest

    @property
    def resumed_from(self) -> CheckpointRecord | None:
        """What its present attempt was started from, as far as is known."""
        before = (each for each in self.progress.checkpoints if each.attempt < self.attempt.number)
        return max(before, key=lambda each: (each.attempt, each.step), default=None)

    @property
    def resumable_note(self) -> str:
        """Why it cannot resume; empty: it can, or has not said so."""
        return self.progress.went_otherwise or self.progress.capabilities.resumable_note

    @property
    def must_stay_whole(self) -> bool:
        """Its own check, which has the last word, or that of a job like it was seen to refuse parts."""
        profile = self.measured.profile
        refused = profile is not None and profile.accumulates is False
        return refused or self.progress.capabilities.refuses_to_split

    @property
    def can_accumulate(self) -> bool:
        """Nothing speaks against it so far, as its library or that of its like has said, or it was measured
        in parts; and it was never seen to refuse."""
        if self.must_stay_whole or self.spec.is_elastic:
            return False  # What an elastic one accumulates follows from its number of devices.
        profile = self.measured.profile
        return self.progress.capabilities.accumulates or (
            profile is not None and (profile.accumulates is True or profile.measured_s[-1:] > (1,))
        )

    def split_slowdown(self, accumulation_steps: int, devices: int | None = None) -> float:
        """Step time at s / step time at the whole batch, alone; 1 where nothing is known. Of an elastic job:
        on so many devices (those it has) / on gpus_min, so it is below 1 on more."""
        if self.spec.is_elastic:
            count = devices or (len(self.placement.devices) if self.placement else self.spec.gpus_min)
            return (
                1.0 if self.measured.curve is None else self.measured.curve.ratio(count, self.spec.gpus_min)
            )
        profile, batch = self.measured.profile, self.batch_size
        if accumulation_steps == 1 or profile is None or batch is None:
            return 1.0
        whole = perf.step_s(profile, batch, 1, self.gang)
        part = perf.step_s(profile, batch, accumulation_steps, self.gang)
        return max(1.0, part / whole) if whole and part else 1.0

    def needed_mib(self, accumulation_steps: int) -> int | None:
        """Peak memory per device at s: profiled, else declared (a bound at any s), else unknown."""
        profiled = (
            perf.memory_mib(self.measured.profile, accumulation_steps) if self.measured.profile else None
        )
        return self.spec.memory_mib if profiled is None else round(profiled) or 1

    @property
    def planned_mib(self) -> int | None:
        """The memory per device that was planned for a placed job; None: not known, or not placed."""
        return self.placement.memory_mib if self.placement else None

    @property
    def ends_with_lease(self) -> bool:
        """Whether its supervisors end it when they hear nothing for a whole lease. They decide from what they
        know; where we are not certain of that the job may still run, so it does not start elsewhere."""
        return self.progress.resumable and (
            self.attempt.known_to_resume or set(self.attempt.capable) >= set(self.attempt.hosts_left)
        )

    @property
    def devices_due(self) -> float:
        """How many it has, or is to have next; waiting, the fewest that it takes. Below 1: a part of one."""
        placement = self.resize_to or self.placement
        return self.spec.size if placement is None else placement.size

    @property
    def preemptible(self) -> bool:
        return self.progress.resumable and self.spec.job_class == "spot"

    @property
    def lends(self) -> bool:
        """Whether it is idle, and others may have its devices until it works again."""
        return self.attempt.idle is not None and self.attempt.idle.lends

    def remaining_now_s(self, now_s: float) -> float | None:
        """Expected training time still to do, alone, at `now_s`; never negative."""
        remaining_s = self.estimate.remaining_s
        if remaining_s is None or self.phase is not RUNNING:
            return remaining_s
        left_s = remaining_s - (now_s - self.estimate.remaining_at_s) / self.estimate.slowdown
        return left_s if left_s > 0.0 else 0.0

    def ran_s(self, now_s: float) -> float:
        """How long it has trained so far, over all its attempts."""
        return self.spent.run_s + (now_s - self.phase_since_s if self.phase is RUNNING else 0.0)

    def times(self, now_s: float) -> tuple[float, float, float, float]:
        """(wait, load, run, pause) with the present phase's share: the ledger adds it at the phase's end."""
        so_far_s = 0.0 if self.phase in ENDED else max(0.0, now_s - self.phase_since_s)
        leaves = self.phase in LEAVING
        return (
            self.spent.wait_s + (so_far_s if self.phase not in ON_DEVICES else 0.0),
            self.spent.load_s + (so_far_s if self.phase is LOADING else 0.0),
            self.spent.run_s + (so_far_s if self.phase is RUNNING else 0.0),
            self.spent.pause_s + (so_far_s if leaves else 0.0),
        )

    def limit_left_s(self, now_s: float) -> float | None:
        """How long it may still be on devices; None: it has no time limit."""
        limit_s = self.spec.time_limit_s
        return None if limit_s is None else max(0.0, limit_s - self.limit_used_s(now_s))

    def limit_used_s(self, now_s: float) -> float:
        """How long it has been on devices, of its time limit."""
        since_s = now_s - self.phase_since_s if self.phase in (LOADING, RUNNING) else 0.0
        return self.spent.load_s + self.spent.run_s + since_s - self.spent.past_limit_s

    def trained_s(self, now_s: float) -> float | None:
        """How long a job with a budget has trained, as alone."""
        return None if self.budget is None else self.budget.trained_s(now_s)

    def budget_left_s(self, now_s: float) -> float | None:
        """How long it may still train, as alone; None: it has no budget."""
        if self.spec.budget_s is None:
            return None
        left_s = self.spec.budget_s - (self.trained_s(now_s) or 0.0)
        return left_s if left_s > budget_use.NEAR_S else 0.0

    def known_left_s(self, now_s: float) -> float | None:
        """The time that `remaining_now_s` gives, if the estimate is about this job; None for a guess, which
        may only order a queue."""
        return None if self.estimate.is_guess else self.remaining_now_s(now_s)

    def length_left(self, now_s: float) -> lengths.Length | None:
        """What `remaining_now_s` gives, with its spread and source; None: nothing is estimated. A guess
        without a spread has that of Lindy's law: a tenth of jobs end within a ninth of what they have had, a
        tenth take nine times as long again."""
        likely_s, said = self.remaining_now_s(now_s), self.estimate
        if likely_s is None:
            return None
        low_s, high_s = said.low_s, said.high_s
        if low_s is None or high_s is None:
            spread = LINDY_SPREAD if said.is_guess else 1.0
            return lengths.Length(likely_s, likely_s / spread, likely_s * spread, said.source)
        gone_s = (said.remaining_s or 0.0) - likely_s
        low_s, high_s = max(0.0, low_s - gone_s), high_s - gone_s
        return lengths.Length(likely_s, min(likely_s, low_s), max(likely_s, high_s), said.source)

    def told_left(self, now_s: float, likely_s: float | None = None) -> lengths.Length | float | str:
        """The operand of a reason for what is left: a number where that is known. `likely_s`: what a policy
        counts in its place, such as that and a load, or that on a slower device."""
        left = self.length_left(now_s)
        if left is None:
            return "an unknown time"
        told_s = left.likely_s if likely_s is None else likely_s
        return told_s if left.is_exact else left.as_if(told_s)
