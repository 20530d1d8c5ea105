"""Questions about jobs, their answers, and the views in them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import field

from cotenant.controller import domain
from cotenant.controller.wire.clients.base import Done, Mentions, Question, Reply
from cotenant.controller.wire.clients.submissions import Submit, Submitted
from cotenant.controller.wire.times import Utc, wall_s
from cotenant.controller.wire.views import JsonView, ProfileView, PromiseView, SharingView, ThroughputView

GIVEN_UP: Final = ("held-infra", "workdir-missing", "held-idle")
"""Reasons of a hold that no person asked for."""


SubmissionKind = Literal["array", "function", "script", "command"]
"""What was submitted: a task of an array (whatever it runs), a Python function, a batch script, a command."""


class ListJobs(Question["Jobs"], frozen=True, kw_only=True, tag="jobs"):
    job_ids: tuple[domain.JobId, ...] = ()
    """Empty: all. An array's number stands for all its tasks."""
    include_ended: bool = False
    user: str = ""
    states: tuple[domain.Phase, ...] = ()
    """Empty: all. One in which jobs have ended lists those."""
    limit: int = 10_000
    page: int = 0
    """At most so many in one answer, in order of arrival; `Jobs.next` tells how to go on. 0: all that one
    message holds."""
    after: int = 0
    """With `page`: the `next` of the answer before."""
    ended: bool = False
    """Only jobs that have ended, the newest first; a page then goes on by `before`."""
    count: bool = True
    """Whether `by_state` is wanted, for which all pages are looked through."""
    before: tuple[float, int] | None = None
    """With `ended` and `page`: the `next_before` of the answer before."""
    name: str = ""
    """Only those with this in their names, in any case. Here and below, empty: all."""
    text: str = ""
    """Only those with each of these words in number, name, user or command, in any case."""
    kind: SubmissionKind | Literal[""] = ""
    fold: bool = False
    """Two or more tasks of one array become one row, whose `array` counts all its tasks."""
    brief: bool = False
    """For a table: without when jobs end, and without what sharing did and was expected to do."""


class ShowJob(Question["Shown"], frozen=True, kw_only=True, tag="show"):
    job_id: domain.JobId


class Explain(Question["Explained"], frozen=True, kw_only=True, tag="explain"):
    job_id: domain.JobId


class ChangeJobs(Question[Done], frozen=True, kw_only=True, tag="change"):
    verb: domain.ChangeVerb
    job_ids: tuple[domain.JobId, ...]
    interrupt: bool = False
    """With `cancel`: as Ctrl-C on a terminal does. Jobs on devices get SIGINT and `INTERRUPT_S` to end."""


class SetJobs(Question[Done], frozen=True, kw_only=True, tag="set"):
    """Change the options of jobs, all of them or none."""

    job_ids: tuple[domain.JobId, ...]
    changes: dict[str, str | int | float | None]
    """By the option's name; None: as if the user had not given it."""


class WaitJobs(Question["Jobs"], frozen=True, kw_only=True, tag="wait"):
    """Answered when all have ended, or after `timeout_s` with what is known then."""

    job_ids: tuple[domain.JobId, ...]
    timeout_s: float = 30.0
    first: bool = False
    """Answered as soon as one has ended, with those that have, or after `timeout_s` with none."""


class ReadJobLog(Question["LogPart"], frozen=True, kw_only=True, tag="read-log"):
    job_id: domain.JobId
    attempt: int | None = None
    """None: the newest."""
    rank: int = 0
    offset: int = 0
    limit: int = 65_536
    wait_s: float = 0.0
    errors_apart: bool = False
    """A part is to have output or standard error, not both, where the job's log tells them apart."""


class ListEtas(Question["Etas"], frozen=True, kw_only=True, tag="etas"):
    """Asks when jobs start and end."""

    job_ids: tuple[domain.JobId, ...] = ()
    """Empty: all that have not ended."""


class EtaTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A tenth of such times lies before p10, half before p50, nine tenths before p90."""

    p10_at: Utc
    p50_at: Utc | None
    """None: only the interval is known, or this time has passed."""
    p90_at: Utc | None
    """None: it has no bound that anybody knows, or this time has passed."""
    is_overdue: bool = field(name="overdue", default=False)
    """All of these times have passed: it takes longer than was foreseen when they were told."""
    is_spread_known: bool = field(name="spread_known", default=True)
    """False: one time, told as p10 and p90 as well, because nobody knows how far off it may be."""
    is_limit: bool = field(name="limit", default=False)
    """Nothing is known but the job's time limit: it ends by p90 at the latest."""


class EtaView(JsonView, frozen=True, kw_only=True, tag="eta/1"):
    """When a job starts and ends."""

    job_id: domain.JobId = field(name="job")
    name: str
    phase: domain.Phase = field(name="state")
    start: EtaTimes | None
    """None: it has started, or nobody can say."""
    finish: EtaTimes | None
    """None: nobody can say; `basis` says why."""
    is_calibrated: bool = field(name="calibrated")
    basis: str
    policy: str
    hit_rate: float | None
    """Of the last calibrated intervals told at submission under this policy, the share that held."""
    hits_of: int
    """How many those are, 100 at most."""
    told_at: Utc | None
    """None: nothing has been computed yet."""
    age_s: float | None = None
    """How long ago that was."""


class SpeedupView(msgspec.Struct, frozen=True, kw_only=True):
    """How fast an elastic job is on so many devices."""

    gpus: int
    speedup: float
    """Its pace over that on the fewest."""


class PromisedEndView(msgspec.Struct, frozen=True, kw_only=True):
    """The end that a job was promised, and what has become of it."""

    by_at: Utc
    state: domain.PromiseState
    why: str | None = None
    """Why it was broken, or is void."""
    devices: tuple[str, ...] = ()
    """Kept for it while it waits, from `from_at` on."""
    from_at: Utc | None = None


class LeftView(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job still trains, alone, in seconds: the likely time, and what it rests on."""

    likely_s: float
    low_s: float
    """A tenth of such jobs have less left."""
    high_s: float
    """A tenth of such jobs have more left."""
    source: str
    is_guess: bool
    """Whether it rests on nothing that is about this job or its like."""


class ShareBoundView(msgspec.Struct, frozen=True, kw_only=True):
    """What sharing may cost a job, and how that stands over the last minute."""

    max: float
    """Its step time beside others, over that alone, at most."""
    is_own: bool
    """The job or its class names it; else it is the cluster's, and gives way to a co-tenant's own."""
    ratio_p50: float | None = None
    ratio_p99: float | None = None
    """Null: nothing was compared within the last minute."""
    alone_step_s: float | None = None
    """Measured while nobody else trained on its devices; null: not known yet."""
    guest_pace: float = 1.0
    """The part of the time that its co-tenants may train."""
    guests_in_phase: bool = False
    """Their micro-batches begin only at a certain place in its steps."""


class PromiseCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Promised ends, since the journal began."""

    open: int
    kept: int
    broken: int
    void: int


class ArrayView(msgspec.Struct, frozen=True, kw_only=True):
    """An array whose tasks are folded into one row."""

    number: str
    """Names all its tasks in every verb."""
    first: int
    """Least and greatest index of its tasks."""
    last: int
    tasks: int
    by_state: dict[domain.Phase, int]
    """How many tasks are in each state, those included that only the journal knows."""


class IdleView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a job on devices uses them."""

    rule: str
    """What is done about it while it does not."""
    since_at: Utc | None = None
    """Since when it is idle; null: it works, or has not been idle long enough for the first step of the
    rule."""
    stage: str = ""
    """What was done last about it: warn, share, word (it is stopped soon) or stop; empty: nothing."""
    idle_s: float | None = None
    """How long its agent knows that nothing happens; null: it cannot tell."""


class JobView(JsonView, frozen=True, kw_only=True, tag="job/1"):
    """A job as its users see it."""

    job_id: domain.JobId = field(name="job")
    name: str
    user: str
    phase: domain.Phase = field(name="state")
    reason: str
    reason_code: str
    reason_jobs: Mentions = ()
    """Where it names jobs."""
    attempt: int
    job_class: str = field(name="class")
    priority: int = 0
    organisation: str | None = None
    guaranteed_h: float | None = None
    """Of spot jobs: how long a run is guaranteed under the policy in force; null: it guarantees nothing."""
    broken_promises: int = 0
    """Runs that were preempted sooner."""
    share: str
    gpus: int
    gpus_range: tuple[int, int] | None = None
    """Fewest and most of an elastic job; null: it is rigid."""
    gpu_fraction: float = 1.0
    """Below 1: of its one device it holds this part; one that waits asks for it."""
    resizes: int = 0
    """How often it was given another number of devices while it trained."""
    speedups: tuple[SpeedupView, ...] = ()
    """Of an elastic job, by number of devices."""
    speedups_source: str | None = None
    """profile, seen (its own steps), like jobs, or assumed."""
    devices: tuple[str, ...]
    co_tenants: tuple[domain.JobId, ...]
    """Sharing a device right now."""
    co_tenants_ever: tuple[domain.JobId, ...]
    sub_batch: int | None
    accumulation_steps: int
    accumulation_steps_ever: tuple[int, ...]
    start_assumed: bool = False
    """It counts as running although no step of it was seen."""
    step: int
    iterations: int | None
    total_steps: int | None = None
    """As far as could be seen of its script."""
    total_note: domain.ForOwner[str | None] = None
    """What that rests on, or why it was not seen."""
    batch_rows: int | None = None
    """Per worker, as said or seen; null: not known, so it stays whole."""
    batch_note: domain.ForOwner[str | None] = None
    """Where that was seen, or why it is not known; null of a batch size that came with the submission."""
    step_s: float | None
    loss: domain.ForOwner[float | None]
    metrics: domain.ForOwner[tuple[domain.JobMetric, ...]] = ()
    """The last of each name that it has told, the loss among them; of the newest attempt that told any."""
    parameters: domain.OfCommand[dict[str, str]] = field(default_factory=dict)
    """Names and values that a grid gave it."""
    link: domain.ForOwner[str | None] = None
    """Its page elsewhere: as its user says, else as it has printed."""
    output_lost: str | None = None
    """What of its output could not be written, to its log or to the file of `--output`; null: nothing."""
    resumable: bool
    resumable_note: domain.ForOwner[str | None] = None
    resume_proof: domain.ResumeProof = "unproven"
    """Whether resumes of its kind, the same command and code, have come out as they had been left."""
    resumes_proven: int = 0
    """How many of its kind have."""
    accumulates: bool = False
    accumulates_note: domain.ForOwner[str | None] = None
    durable_step: int
    preemptions: int
    futile_preemptions: int = 0
    aborted_preemptions: int = 0
    exit_code: int | None
    submitted_at: Utc
    begin_at: Utc | None = None
    """It does not start before then (`--begin`)."""
    time_limit_s: float | None = None
    """Null: none."""
    started_at: Utc | None
    ended_at: Utc | None
    wait_s: float
    load_s: float
    run_s: float
    pause_s: float
    futile_s: float = 0.0
    """Part of `load_s` that ended in a preemption before the first step."""
    trained_s: float | None = None
    """Of a job with a budget: the training so far, counted as if it had been alone."""
    budget_s: float | None = None
    expected_load_s: float | None = None
    """What its next load should take: said, else measured on it or on its like. Here and below, None of a job
    that has ended."""
    expected_pause_s: float | None = None
    """What saving and leaving should take."""
    left_s: float | None
    """Null of a guess, which `left` has as well."""
    left_source: str | None
    left: LeftView | None = None
    """Null: nothing is expected, or the job has ended."""
    shared: tuple[SharingView, ...] = ()
    """What was predicted and measured beside each of the others it trained beside."""
    promises: tuple[PromiseView, ...] = ()
    won_device_s: float | None = None
    """Its part of what sharing won; null: there was nothing to compare."""
    eta: EtaView | None = None
    """None for a job that has ended, and where the controller computes no ends."""
    promised: PromisedEndView | None = None
    bound: ShareBoundView | None = None
    """Null: nothing bounds what sharing may cost it."""
    pace: float | None = None
    """The part of the time that it may train, so that a co-tenant keeps its bound; null: it is on no
    device."""
    idle: IdleView | None = None
    """Null: it is on no device."""
    energy_kwh: float | None = None
    """What its GPUs used for it, in all attempts but `energy_unknown_attempts`; null: nothing is known."""
    energy_unknown_attempts: int = 0
    array: ArrayView | None = None
    """The row stands for the tasks of an array; its other fields are those of a task that waits, else of one
    that has devices."""

    @property
    def submitted_s(self) -> float:
        """When the job was submitted; here and below: seconds since the epoch."""
        return wall_s(self.submitted_at)

    @property
    def ended_s(self) -> float | None:
        return wall_s(self.ended_at)

    @property
    def is_given_up(self) -> bool:
        """Held after too many failures: it waits for a person, who may be waiting for it."""
        return self.phase is domain.Phase.HELD and self.reason_code in GIVEN_UP


class JobRow(JobView, frozen=True, kw_only=True, tag="job/1", omit_defaults=True):
    """A `JobView` as the controller sends it: without the fields that have their defaults, which are most of
    them in a long queue. Readers decode a `JobView`."""


class AttemptView(JsonView, frozen=True, kw_only=True, tag="attempt/1"):
    """An attempt of a job on its devices, for timelines and `show`."""

    attempt: int
    devices: tuple[str, ...]
    co_tenants: tuple[domain.JobId, ...]
    accumulation_steps: int
    """The last that its ranks said; as ordered, if they have not said any."""
    parts: tuple[domain.Parts, ...] = ()
    """From which step on its ranks cut their batches into how many; empty: they have not said."""
    equivalent: bool = False
    """By its end, parts of the job's batches had drawn other random numbers than whole ones."""
    outcome: str
    reason: str
    cause: str = ""
    """Why it had to leave its devices, if for another job or by a person."""
    exact: bool | None = None
    proven: int = 0
    """So many steps after its resume came out as in the attempt before."""
    launch: domain.LaunchKind = ""
    launch_why: domain.OwnersText = ""
    """Why not warm."""
    start_step: int = 0
    first_step: int | None
    end_step: int = 0
    launched_at: Utc
    first_step_at: Utc | None
    start_assumed_at: Utc | None = None
    """Since when it counts as running although no step of it was seen; null once one was."""
    stop_requested_at: Utc | None
    ended_at: Utc | None

    @property
    def launched_s(self) -> float:
        """When the attempt was launched; here and below: seconds since the epoch."""
        return wall_s(self.launched_at)

    @property
    def first_step_s(self) -> float | None:
        return wall_s(self.first_step_at)

    @property
    def trains_since_s(self) -> float | None:
        """Since its first step, or since it counts as running without one."""
        return wall_s(self.start_assumed_at if self.first_step_at is None else self.first_step_at)

    @property
    def stop_requested_s(self) -> float | None:
        return wall_s(self.stop_requested_at)

    @property
    def ended_s(self) -> float | None:
        return wall_s(self.ended_at)


class SpecView(domain.JobSpec, frozen=True, kw_only=True, tag_field="schema", tag="job-spec/1"):
    """What the user asked for, as it was submitted."""


def spec_view(spec: domain.JobSpec) -> SpecView:
    return SpecView(**msgspec.structs.asdict(spec))


class JobDetails(JobView, frozen=True, kw_only=True, tag="job/1"):
    """Everything about one job."""

    spec: SpecView
    attempts: tuple[AttemptView, ...]
    profile: ProfileView | None = None
    """What is known of its needs: measured on it, kept from its like, or said with it."""
    profile_given: bool = False
    """It came with the submission, or from a like job before it."""
    throughput: ThroughputView | None = None
    copies: domain.ForOwner[tuple[str, ...]] = ()
    """Where the newest attempt's hosts have the job's copies of its snapshot, as `HOST:FOLDER`."""
    verbs: tuple[domain.ChangeVerb, ...] = ()
    """Changes that the asker may ask for now."""
    settable: dict[str, str | int | float | None] = field(default_factory=dict)
    """Options that the asker may set now, with their present values."""
    told: domain.ForOwner[str | None] = None
    """Of what the owner is told, by which ways, and what became of the last message; None: of nothing."""


class ExplanationView(JsonView, frozen=True, kw_only=True, tag="explanation/1"):
    job_id: domain.JobId = field(name="job")
    phase: domain.Phase = field(name="state")
    reason: str
    reason_code: str
    lines: tuple[str, ...]
    """First what is true now, then the history of decisions, newest first."""
    ahead: tuple[str, ...] = ()
    """Of a job that waits: who is ahead, what would have to happen first, which change would help."""
    lines_jobs: tuple[Mentions, ...] = ()
    """Where each line names jobs, as of those ahead."""
    ahead_jobs: tuple[Mentions, ...] = ()
    now: Utc
    lines_now: int = 1
    """How many of the lines are true now; the others are the history."""


class Jobs(Reply, frozen=True, kw_only=True, tag="job-list"):
    jobs: tuple[JobView, ...]
    now: Utc
    more: int = 0
    """How many matched beyond those here."""
    next: int = 0
    """Of a page: `after` of the next one; 0: there is none."""
    next_before: tuple[float, int] | None = None
    """Of a page of ended jobs: `before` of the next one; None: there is none."""
    by_state: dict[domain.Phase, int] = field(default_factory=dict)
    """How many jobs match in each state, on all pages together; empty where that was not asked for."""
    forgotten_jobs: int = 0
    """Ended jobs that only the journal knows: they are in no list, and have answers by number."""


class Shown(Reply, frozen=True, kw_only=True, tag="shown"):
    job: JobDetails
    now: Utc

    @property
    def attempts(self) -> tuple[AttemptView, ...]:
        return self.job.attempts


class Explained(Reply, frozen=True, kw_only=True, tag="explained"):
    job: JobView
    explanation: ExplanationView


class LogPart(Reply, frozen=True, kw_only=True, tag="log-part"):
    job_id: domain.JobId
    attempt: int
    rank: int
    data: bytes
    next_offset: int
    at_end: bool
    closed: bool
    attempts: tuple[int, ...]
    """All attempts that have logs, so that a reader can join them in order."""
    ranks: int
    missing: str = ""
    is_error: bool = False
    """It is standard error, which was asked for apart."""


class EtaScoreView(JsonView, frozen=True, kw_only=True, tag="eta-score/1"):
    """How good the intervals were that were told under one policy, of those that are kept."""

    policy: str
    kind: domain.EtaKind
    current: bool
    predictions: int
    """Calibrated ones; only these count below."""
    uncalibrated: int
    coverage_80: float | None
    """Share of ends within p10 to p90: 0.8 would be just right."""
    hit_rate_100: float | None
    """The same of the last 100."""
    median_bias: float | None
    """Median of actual / p50 - 1."""
    median_abs_error: float | None
    width_over_jct: float | None


class Etas(Reply, frozen=True, kw_only=True, tag="eta-list"):
    etas: tuple[EtaView, ...]
    scores: tuple[EtaScoreView, ...]
    now: Utc
    promises: PromiseCounts | None = None


JobRequest = Submit | ListJobs | ShowJob | Explain | ChangeJobs | SetJobs | WaitJobs | ReadJobLog | ListEtas
JobReply = Submitted | Jobs | Shown | Explained | LogPart | Etas
