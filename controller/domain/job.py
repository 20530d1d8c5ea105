"""A job: what the user asked for, the phases it goes through, and the ledger's record of it.

Rule: `LIFECYCLE` is the only place that says which phase follows which; `advance` is the only way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from cotenant.controller.domain.ids import AttemptNo, DeviceId, HostId, JobId
from cotenant.controller.domain.perf import Profile
from cotenant.controller.domain.reasons import Reason
from cotenant.controller.domain.throughput import Gang, sized_gang

LaunchMode = Literal["worker", "host"]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How the user's command is started; opaque to policies."""

    argv: tuple[str, ...] = ()
    workdir: str = "/"
    env: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    """Names of variables whose values stay in a 0600 file and never enter journal, logs or `show`."""
    output: str = ""
    """Extra file (a pattern with %j, %a, %r) that receives the rank's output; empty = agent's logs only."""
    mode: LaunchMode = "worker"
    """worker: once per device; host: once per host (torchrun, accelerate, deepspeed)."""
    zero_code: tuple[str, ...] = ()
    """What the hook does for a script that knows nothing of cotenant: accumulate, mean, checkpoint,
    progress."""
    watchdog_s: float | None = None
    """`--watchdog`: seconds without an optimizer step after which it hangs; 0 = never; None = the agent's
    rule."""
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """`--after JOB` (`ok`: it must have finished well) or `--after any:JOB` (`any`: ended at all)."""

    job_id: JobId
    need: Literal["ok", "any"] = "ok"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. Never changes after submission."""

    job_id: JobId
    name: str = ""
    user: str = ""
    organisation: str = ""
    job_class: Literal["hp", "spot"] = "spot"
    gpus_min: int = 1
    gpus_max: int = 1
    """Above gpus_min only for elastic jobs (PCS)."""
    nodes: int = 0
    """Pods of equal size, one per host; 0 = as few hosts as possible."""
    gpu_fraction: float = 1.0
    """Below 1: a part of one device (GFS); such a job has gpus_min = gpus_max = 1."""
    gpu_type: str = ""
    features: tuple[str, ...] = ()
    memory_mib: int | None = None
    """Declared peak device memory per worker at the whole batch; None = unknown."""
    cpus: int = 0
    host_memory_mib: int = 0
    batch_size: int | None = None
    """Per worker. None = unknown: never accumulated."""
    iterations: int | None = None
    """Optimizer steps in all."""
    expected_s: float | None = None
    load_s: float | None = None
    """Launch to first step, if known beforehand; else learned from what ran before."""
    pause_s: float | None = None
    """Stop request to devices free, if known beforehand; else learned."""
    time_limit_s: float | None = None
    share: Literal["auto", "never"] = "auto"
    resumable: bool | None = None
    """None: learned from the job itself when it says hello."""
    retries: int = 0
    after: tuple[Dependency, ...] = ()
    hold: bool = False
    profile: Profile | None = None
    profiling: Literal["auto", "never", "only"] = "auto"
    """auto: measured in place, while its first attempt runs alone, if no like job was before. only: it runs
    for its profile's sake and ends when that is complete (`cotenant profile`)."""
    code_sha256: str = ""
    """Of the script, what lies beside it and the libraries it would load, as the submitter's machine has
    them; empty if nobody could read them. Jobs with the same one may share a profile."""
    launch: Launch = Launch()

    def __post_init__(self) -> None:
        if not _is_plain(self) and (problem := _problem(self)):
            raise ValueError(f"job {self.job_id}: {problem}")

    @property
    def gpus(self) -> int:
        return self.gpus_min

    @property
    def gang(self) -> Gang:
        """What it asks for; without a number of hosts it is taken for a gang of one."""
        return sized_gang(self.gpus_min, self.nodes or 1)


def _is_plain(spec: JobSpec) -> bool:
    """Whether a spec leaves most things open and nothing can be wrong with the rest: as `_problem` says, but
    quickly. A simulation makes hundreds of thousands of them."""
    return (
        0 < spec.gpus_min == spec.gpus_max
        and spec.nodes == spec.cpus == spec.host_memory_mib == spec.retries == 0
        and spec.gpu_fraction == 1.0
        and spec.memory_mib is spec.batch_size is spec.time_limit_s is None
        and (spec.iterations is None or spec.iterations > 0)
        and (spec.expected_s is None or 0 < spec.expected_s < 1e9)
        and (spec.load_s is None or 0 <= spec.load_s < 1e9)
        and (spec.pause_s is None or 0 <= spec.pause_s < 1e9)
        and not spec.after
    )


def _problem(spec: JobSpec) -> str:
    """The first thing wrong with a spec, for a person; empty if nothing is."""
    checks = (
        (spec.gpus_min < 1, f"needs at least 1 GPU, got {spec.gpus_min}"),
        (spec.gpus_max < spec.gpus_min, f"gpus_max {spec.gpus_max} is below gpus_min {spec.gpus_min}"),
        (spec.nodes < 0, f"nodes must not be negative, got {spec.nodes}"),
        (
            spec.nodes > 0 and spec.gpus_min % spec.nodes != 0,
            f"gpus {spec.gpus_min} is not a multiple of nodes {spec.nodes}",
        ),
        (not 0.0 < spec.gpu_fraction <= 1.0, f"gpu_fraction must be in (0, 1], got {spec.gpu_fraction}"),
        (spec.gpu_fraction < 1.0 and spec.gpus_max > 1, "a part of a GPU is only possible for one worker"),
        (
            spec.memory_mib is not None and spec.memory_mib < 1,
            f"memory must be positive, got {spec.memory_mib} MiB",
        ),
        (spec.cpus < 0 or spec.host_memory_mib < 0, "cpus and host memory must not be negative"),
        (
            spec.batch_size is not None and spec.batch_size < 1,
            f"batch size must be positive, got {spec.batch_size}",
        ),
        (
            spec.iterations is not None and spec.iterations < 1,
            f"iterations must be positive, got {spec.iterations}",
        ),
        (
            spec.expected_s is not None and not 0 < spec.expected_s < 1e9,
            f"expected time must be positive, got {spec.expected_s}",
        ),
        (
            any(known is not None and not 0 <= known < 1e9 for known in (spec.load_s, spec.pause_s)),
            f"load and pause times must not be negative, got {spec.load_s} and {spec.pause_s}",
        ),
        (
            spec.time_limit_s is not None and not 0 < spec.time_limit_s < 1e9,
            f"time limit must be positive, got {spec.time_limit_s}",
        ),
        (spec.retries < 0, f"retries must not be negative, got {spec.retries}"),
        (any(d.job_id == spec.job_id for d in spec.after), "a job cannot wait for itself"),
    )
    return next((text for wrong, text in checks if wrong), "")


class Phase(StrEnum):
    """Where a job stands. See `LIFECYCLE`."""

    BLOCKED = "blocked"
    """Not yet eligible: waits for another job, or for the end of a back-off."""
    HELD = "held"
    QUEUED = "queued"
    RESERVED = "reserved"
    """Devices are chosen, and victims are still leaving them; nothing has been sent."""
    LOADING = "loading"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    """Asked to save and leave; devices still held."""
    STOPPING = "stopping"
    """Being ended without a (further) save; devices still held."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


# Looking a member up in its class costs more than all else in a comparison; what is asked several times per
# event is asked by these names.
QUEUED: Final = Phase.QUEUED
RESERVED: Final = Phase.RESERVED
LOADING: Final = Phase.LOADING
RUNNING: Final = Phase.RUNNING
CHECKPOINTING: Final = Phase.CHECKPOINTING
STOPPING: Final = Phase.STOPPING

WAITING = frozenset({Phase.BLOCKED, Phase.HELD, Phase.QUEUED})
ON_DEVICES = frozenset({Phase.LOADING, Phase.RUNNING, Phase.CHECKPOINTING, Phase.STOPPING})
LEAVING = frozenset({Phase.CHECKPOINTING, Phase.STOPPING})
ENDED = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED})


class Change(StrEnum):
    """What can happen to a job, as the lifecycle sees it."""

    BLOCK = "block"
    UNBLOCK = "unblock"
    HOLD = "hold"
    RELEASE = "release"
    RESERVE = "reserve"
    UNRESERVE = "unreserve"
    LAUNCH = "launch"
    FIRST_STEP = "first-step"
    SAVE_AND_STOP = "save-and-stop"
    STOP = "stop"
    """End it without a save: it is loading, cannot resume, or missed its deadline."""
    LEAVE = "leave"
    """All its processes are gone and it waits again (preempted, or to be retried)."""
    LEAVE_BLOCKED = "leave-blocked"
    LEAVE_HELD = "leave-held"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"


LAUNCH: Final = Change.LAUNCH
FIRST_STEP: Final = Change.FIRST_STEP
FINISH: Final = Change.FINISH
LEAVE: Final = Change.LEAVE

LIFECYCLE: dict[tuple[Phase, Change], Phase] = {
    (Phase.BLOCKED, Change.UNBLOCK): Phase.QUEUED,
    (Phase.BLOCKED, Change.HOLD): Phase.HELD,
    (Phase.BLOCKED, Change.CANCEL): Phase.CANCELLED,
    (Phase.HELD, Change.RELEASE): Phase.QUEUED,
    (Phase.HELD, Change.BLOCK): Phase.BLOCKED,  # released while a dependency is still open
    (Phase.HELD, Change.CANCEL): Phase.CANCELLED,
    (Phase.QUEUED, Change.BLOCK): Phase.BLOCKED,
    (Phase.QUEUED, Change.HOLD): Phase.HELD,
    (Phase.QUEUED, Change.RESERVE): Phase.RESERVED,
    (Phase.QUEUED, Change.LAUNCH): Phase.LOADING,
    (Phase.QUEUED, Change.CANCEL): Phase.CANCELLED,
    (Phase.RESERVED, Change.LAUNCH): Phase.LOADING,
    (Phase.RESERVED, Change.UNRESERVE): Phase.QUEUED,
    (Phase.RESERVED, Change.HOLD): Phase.HELD,
    (Phase.RESERVED, Change.CANCEL): Phase.CANCELLED,
    (Phase.LOADING, Change.FIRST_STEP): Phase.RUNNING,
    (Phase.LOADING, Change.STOP): Phase.STOPPING,  # a futile preemption, a cancel, a lost peer
    (Phase.LOADING, Change.SAVE_AND_STOP): Phase.CHECKPOINTING,
    (Phase.RUNNING, Change.SAVE_AND_STOP): Phase.CHECKPOINTING,
    (Phase.RUNNING, Change.STOP): Phase.STOPPING,
    (Phase.CHECKPOINTING, Change.STOP): Phase.STOPPING,  # the deadline passed, or a cancel overtook it
    # Devices go back only here, when every process of the gang is gone.
    **{
        (phase, change): after
        for phase in (Phase.LOADING, Phase.RUNNING, Phase.CHECKPOINTING, Phase.STOPPING)
        for change, after in (
            (Change.LEAVE, Phase.QUEUED),
            (Change.LEAVE_BLOCKED, Phase.BLOCKED),
            (Change.LEAVE_HELD, Phase.HELD),
            (Change.FINISH, Phase.DONE),
            (Change.FAIL, Phase.FAILED),
            (Change.CANCEL, Phase.CANCELLED),
        )
    },
}


class InvalidTransition(AssertionError):
    """A programmer's error: the engine asked for a change that the lifecycle does not have."""


def advance(phase: Phase, change: Change) -> Phase:
    """The phase after a change.

    Raises:
        InvalidTransition: the table has no such cell.
    """
    after = LIFECYCLE.get((phase, change))
    if after is None:
        raise InvalidTransition(f"{change} is not possible for a job that is {phase}")
    return after


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
    """It may not use more memory than planned, although it started alone: somebody may come to share."""
    beside: tuple[JobId, ...] = ()
    """Those it was placed beside: its memory is capped for their sake, even when they have left."""
    reason: Reason


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A durable checkpoint: directory `a<attempt>-s<step>`, visible to the hosts of one domain."""

    attempt: AttemptNo
    step: int
    domain: str
    exact: bool = True


GUESS: Final = "cluster median"
"""Source of an estimate that says how long jobs are here, and nothing of this one."""
GUESSES: Final = frozenset((GUESS, f"{GUESS}, overrun"))
LOAD_S = 30.0
PAUSE_S = 5.0
"""Expected of a job of which, and of whose like, nothing has been said or measured."""

StopCause = Literal[
    "", "preempted", "cancelled", "time-limit", "user", "peer", "lost", "fenced", "crowded", "profiled",
    "faulted",
]  # fmt: skip


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


def capabilities_of(record: msgspec.Struct) -> dict[str, Any]:
    """What the record says of them, by name."""
    return {name: getattr(record, name) for name in Capabilities.__struct_fields__}


class Job(msgspec.Struct, kw_only=True):
    """The ledger's record of a job. Only the ledger and the engine write it; policies read."""

    spec: JobSpec
    number: int
    """Order of arrival; ties break by this."""
    submitted_s: float
    epoch: str = ""
    """Token of the epoch in which it arrived. Empty: before there were epochs, or first launched while some
    agent was older than these and would have looked for its checkpoints under its number alone."""
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
    waits_for: tuple[JobId, ...] = ()
    """Reserved: the victims that still have to leave its devices."""
    stop_cause: StopCause = ""
    stop_reason: Reason | None = None
    outcome: str = ""
    """How the attempt ended, as far as its hosts have said: the worst one counts."""
    to_blame: tuple[HostId, ...] = ()
    """Hosts on which it failed for reasons of theirs, as far as is known before all have said."""
    host_faults: tuple[HostId, ...] = ()
    """Those of them that say themselves that it was their doing."""

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
    expected_load_s: float = LOAD_S
    """What its next load is expected to take: said, else measured on it or on jobs like it."""
    expected_pause_s: float = PAUSE_S
    """What saving and leaving its devices is expected to take."""
    end_s: float = float("inf")
    """Predicted end of a running job: its place in the ledger's order of running jobs."""
    profile: Profile | None = None
    profile_given: bool = False
    """Nothing was to be measured: it came with the submission, or from a like job before it."""
    aged: bool = False
    queued_s: float = 0.0
    """Time it could have run and did not; time held or blocked makes nobody old."""

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
    futile_preemptions: int = 0
    """Preempted while loading: the load was for nothing."""
    aborted_preemptions: int = 0
    """Its devices were taken away again while its victims still left them: their pause was for nothing."""
    futile_s: float = 0.0
    """Part of `load_s` that ended in a futile preemption."""
    user_failures: int = 0
    infra_failures: int = 0
    """In a row; back to 0 at a first step."""
    start_assumed_s: float | None = None
    """Since when this attempt is taken to train, though nobody has told of a first step."""
    first_start_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    avoid: tuple[HostId, ...] = ()
    """Hosts of its last infrastructure failures: tried last."""
    visited: tuple[HostId, ...] = ()
    """Hosts on which it was ever started: they keep things of it until it has ended."""
    workdir_missing: tuple[HostId, ...] = ()

    def begin_attempt(self, hosts: tuple[HostId, ...], now_s: float, epoch: str = "") -> None:
        """The next attempt, on these hosts and from the last durable step: nothing is known of it yet."""
        self.attempt = AttemptNo(max(self.attempt, self.attempts_taken) + 1)
        self.attempt_epoch = epoch
        self.hosts_left = hosts
        self.waits_for, self.started_hosts, self.capable = (), (), ()
        self.to_blame, self.host_faults = (), ()
        self.stop_cause, self.stop_reason, self.outcome, self.exit_code = "", None, "", None
        self.start_step = self.step = step = self.durable_step
        self.known_to_resume, self.step_s = step > 0, None
        self.visited = tuple(dict.fromkeys((*self.visited, *hosts)))
        if self.first_start_s is None:
            self.first_start_s = now_s

    def learn_capabilities(self, said: msgspec.Struct) -> None:
        """What its library has said last counts."""
        for name, value in capabilities_of(said).items():
            setattr(self, name, value)

    @property
    def job_id(self) -> JobId:
        return self.spec.job_id

    @property
    def gang(self) -> Gang:
        """What it runs on, or asks for."""
        if self.placement is None or not self.hosts_left:
            return self.spec.gang
        return sized_gang(len(self.placement.devices), len(self.hosts_left))

    @property
    def durable_step(self) -> int:
        return max(c.step for c in self.checkpoints) if self.checkpoints else 0

    @property
    def can_accumulate(self) -> bool:
        """Seen live, or measured with more than one accumulation step; and never seen to refuse."""
        profile = self.profile
        if profile is not None and profile.accumulates is False:
            return False
        return self.accumulates or (
            profile is not None and any(p.accumulation_steps > 1 for p in profile.points)
        )

    @property
    def ends_with_lease(self) -> bool:
        """Whether its supervisors end it when they hear nothing for a whole lease. They go by what they know
        themselves; a job of which that is not certain may still run, so it is not started elsewhere."""
        return self.resumable and (self.known_to_resume or set(self.capable) >= set(self.hosts_left))

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

    def known_left_s(self, now_s: float) -> float | None:
        """The same where it is about this job: None for a guess, by which a queue may be ordered and nothing
        else."""
        return None if self.estimate_source in GUESSES else self.remaining_now_s(now_s)
