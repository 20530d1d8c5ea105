"""The parts of a job's record: its current attempt, its progress, what was measured of it, what is expected
of it, where its time went, and how often things have happened to it.

Rule: a record only answers questions. Only the ledger changes one (`controller/engine/state/records.py`).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cotenant.controller.domain import idling, ids, job_spec, lengths, outcomes, placement, reasons
from cotenant.controller.domain.capabilities import Capabilities
from cotenant.controller.performance import Profile, SeenBatch, SpeedCurve

SHORTEST_S: Final = 300.0


def left_of_unknown_s(had_s: float) -> float:
    """What a job of unknown length is expected to have left: as much as it has had (Lindy's law), and for a
    beginning five minutes."""
    return had_s if had_s > SHORTEST_S else SHORTEST_S


LOAD_S = 30.0
PAUSE_S = 5.0
"""Expected of a job when neither it nor a job like it has declared or measured anything."""

PREEMPTED: Final = ("preempted", "user")
"""Causes of a stop that count as a preemption of the job: by the policy or a guard, and by a person."""

PromiseState = Literal["", "open", "kept", "broken", "void"]
"""Of a promised end; void: its owner cancelled or held the job, or its program failed; empty: none given."""

StopCause = Literal[
    "",
    "preempted",
    "cancelled",
    "time-limit",
    "budget",
    "user",
    "peer",
    "lost",
    "fenced",
    "crowded",
    "profiled",
    "faulted",
    "resized",
    "unsplit",
    "otherwise",
    "idle",
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


class CurrentAttempt(msgspec.Struct, kw_only=True):
    """The attempt of a job that is on devices, or was the last one there. A new attempt is a new value."""

    number: ids.AttemptNo = ids.AttemptNo(0)
    """0: the job has never had devices."""
    epoch: str = ""
    """Token of the epoch in which it was launched."""
    hosts_left: tuple[ids.HostId, ...] = ()
    """Hosts that have not yet said that all its processes are gone."""
    started_hosts: tuple[ids.HostId, ...] = ()
    """Hosts whose processes have been started."""
    launched: job_spec.LaunchKind = ""
    """How they were: warm if all were."""
    capable: tuple[ids.HostId, ...] = ()
    """Hosts all of whose ranks have said that they can resume."""
    known_to_resume: bool = False
    """It was started from a checkpoint, and its hosts were told so."""
    start_step: int = 0
    """The step that it began with."""
    resume_proven: bool = False
    """It was resumed, and has shown that it goes on as it was left."""
    step_s: float | None = None
    """Measured seconds per step in its placement."""
    start_assumed_s: float | None = None
    """Since when it counts as training without a report of its first step."""
    load_assumed_s: float = 0.0
    """How long it had loaded by then."""
    load_s: float = 0.0
    """How long it loaded before its first step; 0 before that, and where the first step is assumed."""
    after_preemption: bool = False
    """The attempt before it was preempted, so that its load is a cost of that."""
    idle: idling.IdleSpell | None = None
    """None: it works, or nothing is to be done about it."""
    allowed_s: float | None = None
    """From its start to its time limit, where that was changed while it ran (infinite: taken away); None: it
    was not."""
    stop_cause: StopCause = ""
    stop_reason: reasons.Reason | None = None
    sent_sigint: bool = False
    """It was sent SIGINT, and may still end by itself."""
    began_s: float = 0.0
    """When its first processes were started, as far as hosts have said; else when it was launched."""
    verdict: outcomes.ExitVerdict | None = None
    """How it ended, as far as its hosts have said: the worst one counts."""
    late_s: float = 0.0
    """How long before the controller heard of it it had ended, while no controller ran."""
    exit_code: int | None = None
    to_blame: tuple[ids.HostId, ...] = ()
    """Hosts on which it failed for reasons of theirs, as far as is known before all have said."""
    host_faults: tuple[ids.HostId, ...] = ()
    """Those of them that say that they caused it."""


class JobProgress(msgspec.Struct, kw_only=True):
    """How far a job is, and whether it can go on from there."""

    step: int = 0
    """Last step seen."""
    total_steps: int | None = None
    """Optimizer steps in all, as far as could be seen of the script."""
    checkpoints: tuple[placement.CheckpointRecord, ...] = ()
    resumable: bool = False
    went_otherwise: str = ""
    """How an attempt did not go on as it was left. Such a job is not preempted any more, and only its proven
    checkpoints count."""
    capabilities: Capabilities = Capabilities()
    """What its own library has said last."""


class JobMeasurements(msgspec.Struct, kw_only=True):
    """What was measured of a job, or of one like it."""

    solo_step_s: float | None = None
    """Seconds per step alone at the whole batch."""
    uncompared: dict[ids.JobId, SharedPace] = {}
    """By co-tenant: its pace while nobody knew `solo_step_s`; compared when it has run alone."""
    batch: SeenBatch = SeenBatch()
    """Rows of its batches."""
    curve: SpeedCurve | None = None
    """Step times of an elastic job on more and fewer devices."""
    profile: Profile | None = None
    profile_given: bool = False
    """The profile was not measured on this job: it came with the submission, or from a job like it."""


class JobEstimate(msgspec.Struct, kw_only=True):
    """What is expected of a job."""

    remaining_s: float | None = None
    """Training time still to do, alone, at `remaining_at_s`; None = unknown."""
    remaining_at_s: float = 0.0
    source: str = "none"
    """Where `remaining_s` comes from."""
    low_s: float | None = None
    """A tenth of such jobs have less than this left, at `remaining_at_s`; None: no spread is known."""
    high_s: float | None = None
    """A tenth of such jobs have more than this left."""
    slowdown: float = 1.0
    """Step time where it is / step time alone at the whole batch."""
    end_s: float = float("inf")
    """Predicted end of a running job: its place in the ledger's order of running jobs."""
    load_s: float = LOAD_S
    """Time of its next load: declared, else measured on it or on jobs like it."""
    pause_s: float = PAUSE_S
    """Time of its next save and leave."""

    @property
    def is_guess(self) -> bool:
        """Whether `remaining_s` rests on nothing but what the job has had: then it may only order a queue."""
        return self.source == lengths.GUESS


class TimeSpent(msgspec.Struct, kw_only=True):
    """Where the time of a job went, in seconds; completion time = wait + load + run + pause."""

    wait_s: float = 0.0
    load_s: float = 0.0
    run_s: float = 0.0
    pause_s: float = 0.0
    queued_s: float = 0.0
    """Time it could have run and did not; time held or blocked does not age it."""
    futile_s: float = 0.0
    """Part of `load_s` that ended in a futile preemption."""
    past_limit_s: float = 0.0
    """On devices before it was last put back by `requeue`: its time limit counts from there."""
    interrupted_s: float = 0.0
    """What preemptions have cost it: the pauses for them, the loads after them, and the steps made twice."""


class JobCounters(msgspec.Struct, kw_only=True):
    """How often things have happened to a job."""

    preemptions: int = 0
    futile_preemptions: int = 0
    """Preempted while loading: the load was for nothing."""
    aborted_preemptions: int = 0
    """Its devices were taken away again while its victims still left them: their pause was for nothing."""
    early_preemptions: int = 0
    """Of `preemptions`: within the time that a run is promised by the policy, or an hour where it promises
    nothing."""
    resizes: int = 0
    """How often it was given another number of devices while it trained."""
    limits_over: int = 0
    """How often it was put back at its time limit."""
    crowded: int = 0
    """How often it ran out of device memory while it shared: after the first time it runs alone, since what
    is known of its memory is wrong."""
    fault_evidence: int = 0
    """That it causes fatal GPU faults while it shares: 2 for each that it is known to have caused, 1 for each
    that it or another caused. From `tenancy.FAULTS_ALONE` on it runs alone."""
    quick_requeues: int = 0
    """In a row: its owner, or its own script, put it back within a minute of its start."""
    user_failures: int = 0
    infra_failures: int = 0
    """In a row; back to 0 at a first step."""
