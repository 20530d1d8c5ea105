"""The ledger's record of a job: where it stands, what it has reached, what is expected of it, what it took;
and what is told of its future, when it starts and when it ends, each as an interval.

Rule: a record only answers questions. Only the ledger changes it (`controller/engine/records.py`);
`tests/house/test_records.py` looks for assignments.

Rule: an interval is in seconds from the moment it was told. One that nobody can give is None, never a guess;
a bound that does not exist is infinite.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from cotenant.controller.domain.ids import AttemptNo, DeviceId, HostId, JobId
from cotenant.controller.domain.job_spec import JobSpec, LaunchKind
from cotenant.controller.domain.lifecycle import LOADING, RUNNING, Phase
from cotenant.controller.domain.reasons import Reason
from cotenant.controller.performance import Gang, Profile, SeenBatch, SpeedCurve, perf, sized_gang


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Job -> devices, sub-batch and accumulation steps, with the reason."""

    devices: tuple[DeviceId, ...]
    """In rank order; devices of one host stand together."""
    accumulation_steps: int = 1
    sub_batch: int | None = None
    memory_mib: int | None = None
    """Planned peak per device; the cap when sharing. None: unknown, so the device is not shared."""
    slowdown: float = 1.0
    """Expected step time / step time alone at the whole batch, at the moment of placing."""
    capped: bool = False
    """It may not use more memory than planned, although it started alone, because a newcomer may share its
    devices."""
    beside: tuple[JobId, ...] = ()
    """Those it was placed beside: its memory is capped for their sake, even when they have left."""
    fraction: float = 1.0
    """Below 1: of its one device it holds this part, and others may hold the rest (`domain/tenancy.py`)."""
    reason: Reason

    @property
    def size(self) -> float:
        """Devices that it holds; below 1 for a part of one."""
        return len(self.devices) if self.fraction == 1.0 else self.fraction


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A durable checkpoint: directory `a<attempt>-s<step>`, visible to the hosts of one domain."""

    attempt: AttemptNo
    step: int
    domain: str
    exact: bool = True


GUESS: Final = "unknown length"
"""Source of an estimate that rests on nothing but what a job has had."""
GUESSES: Final = frozenset((GUESS,))
SHORTEST_S: Final = 300.0


def left_of_unknown_s(had_s: float) -> float:
    """What a job of unknown length is expected to have left: as much as it has had (Lindy's law), and for a
    beginning five minutes."""
    return had_s if had_s > SHORTEST_S else SHORTEST_S


LOAD_S = 30.0
PAUSE_S = 5.0
"""Expected of a job when neither it nor a job like it has declared or measured anything."""

PromiseState = Literal["", "open", "kept", "broken", "void"]
"""Of a promised end; void: its owner cancelled or held the job, or its program failed; empty: none given."""

StopCause = Literal[
    "",
    "preempted",
    "cancelled",
    "time-limit",
    "user",
    "peer",
    "lost",
    "fenced",
    "crowded",
    "profiled",
    "faulted",
    "resized",
    "unsplit",
]


class SharedPace(msgspec.Struct, frozen=True, kw_only=True):
    """What a step took beside a co-tenant, at the whole batch, on average over so many reports."""

    step_s: float
    reports: int

    def and_one(self, step_s: float) -> SharedPace:
        reports = self.reports + 1
        return SharedPace(step_s=self.step_s + (step_s - self.step_s) / reports, reports=reports)


class SeenLength(msgspec.Struct, frozen=True, kw_only=True):
    """How many optimizer steps a job will make, as far as could be seen of its script."""

    steps: int | None = None
    """In all; None: it was not seen."""
    note: str = ""
    """What that rests on, or why it was not seen."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's own library says that it can do. Records between the job and `show` inherit this, or have
    fields of these names, and it is copied as a whole."""

    resumable_note: str = ""
    """Why it cannot resume."""
    accumulates: bool = False
    accumulates_note: str = ""
    """Why its batches stay whole."""


NOTES: Final = tuple(each.name for each in msgspec.structs.fields(Capabilities) if each.type is str)
"""Why it cannot, each empty where it can."""


def capabilities_of(record: msgspec.Struct) -> dict[str, Any]:
    """What the record says of them, by name."""
    return {name: getattr(record, name) for name in Capabilities.__struct_fields__}


def capabilities_of_all(said: Iterable[msgspec.Struct]) -> dict[str, Any]:
    """What all of them can do, with the first word of each note."""
    told = [capabilities_of(each) for each in said]
    found = {name: [each[name] for each in told] for name in Capabilities.__struct_fields__}
    return {
        name: next(filter(None, words), "") if name in NOTES else all(words) for name, words in found.items()
    }


def cannot(what: Literal["accumulates"], why: str) -> dict[str, Any]:
    """The changes to its record when a job refuses what it had said it could do."""
    return {what: False, f"{what}_note": why}


class Job(msgspec.Struct, kw_only=True):
    """The record. Only the ledger writes it."""

    spec: JobSpec
    number: int
    """Order of arrival; ties break by this."""
    submitted_s: float
    epoch: str = ""
    """Token of the epoch in which it arrived."""
    phase: Phase = Phase.QUEUED
    phase_since_s: float = 0.0
    reason: Reason
    attempt: AttemptNo = AttemptNo(0)
    attempt_epoch: str = ""
    """That in which this attempt was launched."""
    attempts_taken: AttemptNo = AttemptNo(0)
    """Numbers up to this one are in use on hosts, by attempts of a history that this journal has lost."""
    strays: tuple[HostId, ...] = ()
    """Hosts that still end such an attempt of this job."""
    placement: Placement | None = None
    hosts_left: tuple[HostId, ...] = ()
    """Hosts of the current attempt that have not yet said that all its processes are gone."""
    started_hosts: tuple[HostId, ...] = ()
    """Hosts of the current attempt whose processes have been started."""
    launched: LaunchKind = ""
    """How they were: warm if all were."""
    resize_to: Placement | None = None
    """Where it goes on when its processes have left (cause `resized`): it has a claim on these devices."""
    waits_for: tuple[JobId, ...] = ()
    """Reserved: the victims that still have to leave its devices."""
    stop_cause: StopCause = ""
    stop_reason: Reason | None = None
    outcome: str = ""
    """How the attempt ended, as far as its hosts have said: the worst one counts."""
    to_blame: tuple[HostId, ...] = ()
    """Hosts on which it failed for reasons of theirs, as far as is known before all have said."""
    host_faults: tuple[HostId, ...] = ()
    """Those of them that say that they caused it."""

    # Progress.
    step: int = 0
    """Last step seen."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    resumable: bool = False
    accumulates: bool = False
    accumulates_note: str = ""
    """Why it cannot, in its own library's words."""
    resumable_note: str = ""
    capable: tuple[HostId, ...] = ()
    """Hosts of the current attempt all of whose ranks have said that they can resume."""
    known_to_resume: bool = False
    """The current attempt was started from a checkpoint, and its hosts were told so."""
    step_s: float | None = None
    """Measured seconds per step in the current placement."""
    solo_step_s: float | None = None
    """Measured seconds per step alone at the whole batch."""
    uncompared: dict[JobId, SharedPace] = {}
    """By co-tenant: its pace while nobody knew `solo_step_s`; compared when it has run alone."""
    start_step: int = 0
    """The step the current attempt began with."""
    remaining_s: float | None = None
    """Expected training time still to do, alone, at `remaining_at_s`; None = unknown."""
    remaining_at_s: float = 0.0
    slowdown: float = 1.0
    estimate_source: str = "none"
    total_steps: int | None = None
    """Optimizer steps in all, as far as could be seen of the script."""
    batch_seen: SeenBatch = SeenBatch()
    """Of this job, or of one like it."""
    expected_load_s: float = LOAD_S
    """Expected time of its next load: declared, else measured on it or on jobs like it."""
    expected_pause_s: float = PAUSE_S
    """Expected time of its next save and leave."""
    end_s: float = float("inf")
    """Predicted end of a running job: its place in the ledger's order of running jobs."""
    curve: SpeedCurve | None = None
    """Step times of an elastic job on more and fewer devices."""
    profile: Profile | None = None
    profile_given: bool = False
    """The profile was not measured on this job: it came with the submission, or from a job like it."""
    rank: int = 0
    """Waiting jobs are ordered by this first, the lowest before the others: priority, and fair share."""
    aged: bool = False
    queued_s: float = 0.0
    """Time it could have run and did not; time held or blocked does not age it."""

    # Accounting, in seconds; JCT = wait + load + run + pause.
    wait_s: float = 0.0
    load_s: float = 0.0
    run_s: float = 0.0
    pause_s: float = 0.0
    co_tenants: tuple[JobId, ...] = ()
    """Every job that has shared a device with this one."""
    crowded: int = 0
    """How often it ran out of device memory while it shared: after the first time it runs alone, since what
    is known of its memory is wrong."""
    outgrown: bool = False
    """It needed more memory than was planned for it, alone on its devices: it runs alone, without a limit."""
    fault_evidence: int = 0
    """That it causes fatal GPU faults while it shares: 2 for each that it is known to have caused, 1 for each
    that it or another caused. From `tenancy.FAULTS_ALONE` on it runs alone."""
    preemptions: int = 0
    resizes: int = 0
    """How often it was given another number of devices while it trained."""
    futile_preemptions: int = 0
    """Preempted while loading: the load was for nothing."""
    aborted_preemptions: int = 0
    """Its devices were taken away again while its victims still left them: their pause was for nothing."""
    past_limit_s: float = 0.0
    """On devices before it was last put back by `requeue`: its time limit counts from there."""
    limits_over: int = 0
    """How often it was put back at its time limit."""
    early_preemptions: int = 0
    """Of `preemptions`: within the time that a run is promised by the policy, or an hour where it promises
    nothing."""
    futile_s: float = 0.0
    """Part of `load_s` that ended in a futile preemption."""
    user_failures: int = 0
    infra_failures: int = 0
    """In a row; back to 0 at a first step."""
    start_assumed_s: float | None = None
    """Since when this attempt counts as training without a report of its first step."""
    load_assumed_s: float = 0.0
    """How long it had loaded by then."""
    first_start_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    avoid: tuple[HostId, ...] = ()
    """Hosts of its last infrastructure failures: tried last."""
    visited: tuple[HostId, ...] = ()
    """Hosts on which it ever started: they keep files of it until it has ended."""
    workdir_missing: tuple[HostId, ...] = ()
    promise: PromiseState = ""
    promise_why: Reason | None = None
    """Why it was broken, or is void."""

    @property
    def job_id(self) -> JobId:
        return self.spec.job_id

    @property
    def batch_size(self) -> int | None:
        """Per worker: as the user says it, else as it was seen; None: not known, so it stays whole."""
        return self.batch_seen.rows if self.spec.batch_size is None else self.spec.batch_size

    @property
    def gang(self) -> Gang:
        """The gang that it runs as, or asks for."""
        if self.placement is None or not self.hosts_left:
            return self.spec.gang
        return sized_gang(len(self.placement.devices), len(self.hosts_left))

    @property
    def durable_step(self) -> int:
        step = 0
        for checkpoint in self.checkpoints:  # A loop costs less than `max`, and jobs have a few at most.
            if checkpoint.step > step:
                step = checkpoint.step
        return step

    @property
    def newest_checkpoint(self) -> CheckpointRecord | None:
        """The furthest of the last attempt that has any: from there it goes on."""
        newest: CheckpointRecord | None = None
        for each in self.checkpoints:
            if newest is None or (each.attempt, each.step) > (newest.attempt, newest.step):
                newest = each
        return newest

    @property
    def can_accumulate(self) -> bool:
        """Seen live, or measured with more than one accumulation step; and never seen to refuse."""
        profile = self.profile
        if self.accumulates_note and not self.accumulates:
            return False  # Its own check has the last word, whatever was measured of its like.
        if (profile is not None and profile.accumulates is False) or self.spec.is_elastic:
            return False  # What an elastic one accumulates follows from its number of devices.
        return self.accumulates or (profile is not None and profile.s_max > 1)

    def split_slowdown(self, accumulation_steps: int, devices: int | None = None) -> float:
        """Step time at s / step time at the whole batch, alone; 1 where nothing is known. Of an elastic job:
        on so many devices (those it has) / on gpus_min, so it is below 1 on more."""
        if self.spec.is_elastic:
            count = devices or (len(self.placement.devices) if self.placement else self.spec.gpus_min)
            return 1.0 if self.curve is None else self.curve.ratio(count, self.spec.gpus_min)
        profile, batch = self.profile, self.batch_size
        if accumulation_steps == 1 or profile is None or batch is None:
            return 1.0
        whole = perf.step_s(profile, batch, 1, self.gang)
        part = perf.step_s(profile, batch, accumulation_steps, self.gang)
        return max(1.0, part / whole) if whole and part else 1.0

    def needed_mib(self, accumulation_steps: int) -> int | None:
        """Peak memory per device at s: profiled, else declared (a bound at any s), else unknown."""
        profiled = perf.memory_mib(self.profile, accumulation_steps) if self.profile else None
        return self.spec.memory_mib if profiled is None else round(profiled) or 1

    @property
    def planned_mib(self) -> int | None:
        """The memory per device that was planned for a placed job; None: not known, or not placed."""
        return self.placement.memory_mib if self.placement else None

    @property
    def ends_with_lease(self) -> bool:
        """Whether its supervisors end it when they hear nothing for a whole lease. They decide from what they
        know; where we are not certain of that the job may still run, so it does not start elsewhere."""
        return self.resumable and (self.known_to_resume or set(self.capable) >= set(self.hosts_left))

    @property
    def devices_due(self) -> float:
        """How many it has, or is to have next; waiting, the fewest that it takes. Below 1: a part of one."""
        placement = self.resize_to or self.placement
        return self.spec.size if placement is None else placement.size

    @property
    def preemptible(self) -> bool:
        return self.resumable and self.spec.job_class == "spot"

    def remaining_now_s(self, now_s: float) -> float | None:
        """Expected training time still to do, alone, at `now_s`; never negative."""
        remaining_s = self.remaining_s
        if remaining_s is None or self.phase is not RUNNING:
            return remaining_s
        left_s = remaining_s - (now_s - self.remaining_at_s) / self.slowdown
        return left_s if left_s > 0.0 else 0.0

    def limit_left_s(self, now_s: float) -> float | None:
        """How long it may still be on devices; None: it has no time limit."""
        if self.spec.time_limit_s is None:
            return None
        since_s = now_s - self.phase_since_s if self.phase in (LOADING, RUNNING) else 0.0
        return max(0.0, self.spec.time_limit_s + self.past_limit_s - self.load_s - self.run_s - since_s)

    def known_left_s(self, now_s: float) -> float | None:
        """The same if it is about this job; None for a guess, which may only order a queue."""
        return None if self.estimate_source in GUESSES else self.remaining_now_s(now_s)


EtaKind = Literal["submission", "revisit"]
"""Told once soon after a job arrived; told again of a job that has been told of before."""
LEVELS: Final = (0.1, 0.5, 0.9)


class EtaInterval(msgspec.Struct, frozen=True, array_like=True):
    """A tenth of the times lies below `p10_s`, half below `p50_s`, nine tenths below `p90_s`."""

    p10_s: float
    p50_s: float
    p90_s: float

    def holds(self, actual_s: float) -> bool:
        return self.p10_s <= actual_s <= self.p90_s


class ToldInterval(msgspec.Struct, frozen=True, array_like=True):
    """As the roll-outs gave it, and as it was told, after correction by earlier errors."""

    raw: EtaInterval
    told: EtaInterval


class ToldEta(msgspec.Struct, frozen=True, kw_only=True):
    """One job's interval that will be compared with what comes."""

    job_id: JobId
    kind: EtaKind
    finish: ToldInterval
    start: ToldInterval | None = None
    """None: it had started."""
    is_calibrated: bool = False
    """There were enough errors to correct it by."""
