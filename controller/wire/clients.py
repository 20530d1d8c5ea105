"""Messages between the controller and command lines: one request, one reply, and the views in it.

Rule: a view (a struct with a `schema`) is what `-o json` prints, as it came: a field has another name in JSON
by its definition here, or not at all. Every request may be sent again with the same `request_id` after a
time-out; the controller answers a repeated submission with the ids it gave the first time.
"""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import msgspec
from msgspec import field

from cotenant.controller.domain import (
    ClassReport,
    DeviceId,
    DeviceKind,
    DeviceState,
    EtaKind,
    ForkServers,
    HostId,
    HostState,
    JobId,
    JobSpec,
    LaunchKind,
    Phase,
    ProfilePoint,
    SharingMode,
    Verdict,
)
from cotenant.controller.wire.sharing import PromiseView, ReportView, SharingView
from cotenant.controller.wire.views import IndicatorView, JsonView, ProfileView, ThroughputView, Utc, wall_s

Parameters = dict[str, str | int | float | bool]
Answer_co = TypeVar("Answer_co", covariant=True)


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m"):
    """Base of what clients and controller say to each other."""


class Question(ClientMessage, Generic[Answer_co], frozen=True, kw_only=True):
    """A request; its parameter is the reply to it."""


# --- Requests --------------------------------------------------------------------------------------


class Submit(Question["Submitted"], frozen=True, kw_only=True, tag="submit"):
    """`specs` carry placeholder ids (`new-0`, ...); dependencies inside the batch name those.

    With `array` the specs become tasks `N_0 .. N_k` of one number. `idempotency_key` makes a repeat
    of the same submission return the first one's ids.
    """

    specs: tuple[JobSpec, ...]
    array_indices: tuple[int, ...] = ()
    secrets: dict[str, str] = {}
    idempotency_key: str = ""
    dry_run: bool = False


class ListJobs(Question["Jobs"], frozen=True, kw_only=True, tag="jobs"):
    job_ids: tuple[JobId, ...] = ()
    """Empty: all. An array's number stands for all its tasks."""
    include_ended: bool = False
    user: str = ""
    states: tuple[Phase, ...] = ()
    """Empty: all. One in which jobs have ended lists those."""
    limit: int = 10_000
    page: int = 0
    """At most so many in one answer, in order of arrival; `Jobs.next` tells how to go on. 0: all that one
    message holds."""
    after: int = 0
    """With `page`: the `next` of the answer before."""


class ShowJob(Question["Shown"], frozen=True, kw_only=True, tag="show"):
    job_id: JobId


class Explain(Question["Explained"], frozen=True, kw_only=True, tag="explain"):
    job_id: JobId


class ChangeJobs(Question["Done"], frozen=True, kw_only=True, tag="change"):
    verb: Literal["cancel", "hold", "release", "preempt", "checkpoint", "requeue"]
    job_ids: tuple[JobId, ...]


class WaitJobs(Question["Jobs"], frozen=True, kw_only=True, tag="wait"):
    """Answered when all have ended, or after `timeout_s` with what is known then."""

    job_ids: tuple[JobId, ...]
    timeout_s: float = 30.0


class ReadJobLog(Question["LogPart"], frozen=True, kw_only=True, tag="read-log"):
    job_id: JobId
    attempt: int | None = None
    """None: the newest."""
    rank: int = 0
    offset: int = 0
    limit: int = 65_536
    wait_s: float = 0.0


class ListNodes(Question["Nodes"], frozen=True, kw_only=True, tag="nodes"):
    pass


class ChangeNode(Question["Done"], frozen=True, kw_only=True, tag="change-node"):
    verb: Literal["drain", "resume", "lost"]
    host_id: HostId


class ListPairs(Question["Pairs"], frozen=True, kw_only=True, tag="pairs"):
    """What was measured of kinds of jobs that shared devices."""

    containing: str = ""
    """Only pairs with this in the name of either kind; empty: all."""
    limit: int = 1_000


class GetReport(Question["SharingReport"], frozen=True, kw_only=True, tag="report"):
    """What sharing and preemption brought and cost."""

    since_s: float | None = None
    """Only what happened in so many seconds before now; None: all that is remembered."""


class ListEtas(Question["Etas"], frozen=True, kw_only=True, tag="etas"):
    """When jobs start and end."""

    job_ids: tuple[JobId, ...] = ()
    """Empty: all that have not ended."""


class GetPolicy(Question["Policies"], frozen=True, kw_only=True, tag="policy"):
    pass


class SetPolicy(Question["Done"], frozen=True, kw_only=True, tag="set-policy"):
    name: str
    parameters: Parameters = {}


class PreviewPolicy(Question["PolicyPreviewed"], frozen=True, kw_only=True, tag="preview-policy"):
    """What a policy would decide at once; nothing is changed."""

    name: str
    parameters: Parameters = {}


class ListProfiles(Question["KnownProfiles"], frozen=True, kw_only=True, tag="profiles"):
    """What is kept of kinds of jobs; a user sees their own, an admin all."""


class ForgetProfiles(Question["Done"], frozen=True, kw_only=True, tag="forget-profiles"):
    keys: tuple[str, ...] = ()
    """Empty: all that the asker may touch."""


class GetStatus(Question["ControllerStatus"], frozen=True, kw_only=True, tag="status"):
    """Version, uptime, counters: for `doctor`, `top` and `version`."""


class GetDecisions(Question["Decisions"], frozen=True, kw_only=True, tag="decisions"):
    """The newest decisions about one job (for `explain`) or all jobs (for `top`)."""

    job_id: JobId | None = None
    limit: int = 20


class Stop(Question["Done"], frozen=True, kw_only=True, tag="stop"):
    """Ask the controller to end (only its own user or an admin). Jobs go on."""


AnyRequest = (
    Submit | ListJobs | ShowJob | Explain | ChangeJobs | WaitJobs | ReadJobLog | ListNodes | ListPairs
    | ChangeNode | GetPolicy | SetPolicy | GetStatus | GetDecisions | ListProfiles | ForgetProfiles
    | GetReport | PreviewPolicy | ListEtas | Stop
)  # fmt: skip


class Request(msgspec.Struct, frozen=True, kw_only=True):
    request_id: int
    body: AnyRequest


# --- Views -----------------------------------------------------------------------------------------


class EtaTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A tenth of such times lies before p10, half before p50, nine tenths before p90."""

    p10_at: Utc
    p50_at: Utc | None
    """None: only the interval is known."""
    p90_at: Utc | None
    """None: it has no bound that anybody knows."""


class EtaView(JsonView, frozen=True, kw_only=True, tag="eta/1"):
    """When a job starts and ends."""

    job_id: JobId = field(name="job")
    name: str
    phase: Phase = field(name="state")
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
    """None: nothing has been worked out yet."""


class JobView(JsonView, frozen=True, kw_only=True, tag="job/1"):
    """One job as users see it."""

    job_id: JobId = field(name="job")
    name: str
    user: str
    phase: Phase = field(name="state")
    reason: str
    reason_code: str
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
    devices: tuple[str, ...]
    co_tenants: tuple[JobId, ...]
    """Sharing a device right now."""
    co_tenants_ever: tuple[JobId, ...]
    sub_batch: int | None
    accumulation_steps: int
    accumulation_steps_ever: tuple[int, ...]
    step: int
    iterations: int | None
    total_steps: int | None = None
    """As far as could be seen of its script."""
    total_note: str | None = None
    """What that rests on, or why it was not seen."""
    step_s: float | None
    loss: float | None
    resumable: bool
    resumable_note: str | None = None
    accumulates: bool = False
    accumulates_note: str | None = None
    durable_step: int
    preemptions: int
    futile_preemptions: int = 0
    aborted_preemptions: int = 0
    exit_code: int | None
    submitted_at: Utc
    started_at: Utc | None
    ended_at: Utc | None
    wait_s: float
    load_s: float
    run_s: float
    pause_s: float
    futile_s: float = 0.0
    """Part of `load_s` that ended in a preemption before the first step."""
    expected_load_s: float | None = None
    """What its next load should take: said, else measured on it or on its like. Here and below, None of a job
    that has ended."""
    expected_pause_s: float | None = None
    """What saving and leaving should take."""
    left_s: float | None
    left_source: str | None
    shared: tuple[SharingView, ...] = ()
    """What was predicted and measured beside each of the others it trained beside."""
    promises: tuple[PromiseView, ...] = ()
    won_device_s: float | None = None
    """Its part of what sharing won; null: nothing of it could be compared."""
    eta: EtaView | None = None
    """None of a job that has ended, and where nobody works it out."""

    @property
    def submitted_s(self) -> float:
        """Here and below: seconds since the epoch."""
        return wall_s(self.submitted_at)

    @property
    def ended_s(self) -> float | None:
        return wall_s(self.ended_at)


class AttemptView(JsonView, frozen=True, kw_only=True, tag="attempt/1"):
    """One attempt of a job on its devices, for timelines and `show`."""

    attempt: int
    devices: tuple[str, ...]
    co_tenants: tuple[JobId, ...]
    accumulation_steps: int
    outcome: str
    reason: str
    exact: bool | None = None
    launch: LaunchKind = ""
    launch_why: str = ""
    """Why not warm."""
    start_step: int = 0
    first_step: int | None
    end_step: int = 0
    launched_at: Utc
    first_step_at: Utc | None
    stop_requested_at: Utc | None
    ended_at: Utc | None

    @property
    def launched_s(self) -> float:
        """Here and below: seconds since the epoch."""
        return wall_s(self.launched_at)

    @property
    def first_step_s(self) -> float | None:
        return wall_s(self.first_step_at)

    @property
    def stop_requested_s(self) -> float | None:
        return wall_s(self.stop_requested_at)

    @property
    def ended_s(self) -> float | None:
        return wall_s(self.ended_at)


class SpecView(JobSpec, frozen=True, kw_only=True, tag_field="schema", tag="job-spec/1"):
    """What the user asked for, as it was submitted."""


def spec_view(spec: JobSpec) -> SpecView:
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


class ExplanationView(JsonView, frozen=True, kw_only=True, tag="explanation/1"):
    job_id: JobId = field(name="job")
    phase: Phase = field(name="state")
    reason: str
    reason_code: str
    lines: tuple[str, ...]
    """First the present answer, then the history of decisions, newest first."""
    ahead: tuple[str, ...] = ()
    """Of a job that waits: who is ahead, and what would have to happen first."""
    now: Utc


class ReadingView(msgspec.Struct, frozen=True, kw_only=True):
    """What a device does just now, whoever uses it."""

    source: str | None
    age_s: float
    """Counted until the answer."""
    lasted_s: float | None
    memory_used_mib: float | None
    values: dict[str, float | None]
    """All of Table 2; null where it was not measured."""
    note: str


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    device_id: DeviceId = field(name="device")
    kind: DeviceKind
    type: str
    memory_mib: int
    reserve_mib: int
    planned_mib: int
    """The sum of its tenants' planned memory."""
    max_tenants: int
    sharing: SharingMode
    sharing_note: str
    cores: tuple[int, ...]
    state: DeviceState
    healthy: bool
    note: str
    reading: ReadingView | None = field(name="indicators", default=None)
    """The newest; None where nothing was ever read."""
    jobs: tuple[JobId, ...] = ()

    @property
    def usable_mib(self) -> int:
        return self.memory_mib - self.reserve_mib


class NodeView(JsonView, frozen=True, kw_only=True, tag="node/1"):
    host: HostId
    state: HostState
    reason: str
    heartbeat_age_s: float | None
    version: str
    address: str
    cpus: int
    memory_mib: int
    features: tuple[str, ...]
    checkpoint_domain: str
    fork_servers: ForkServers | None = None
    """As it last said; None: it has not."""
    devices: tuple[DeviceView, ...]


class PairView(JsonView, frozen=True, kw_only=True, tag="pair/1"):
    """Two kinds of jobs that have shared devices. A kind is a command with its batch and its GPUs."""

    first: str
    second: str
    first_xi: float | None
    """Iteration time beside the other / alone; None: never measured in this direction."""
    second_xi: float | None
    first_count: int
    second_count: int
    first_never_alone: bool = False
    second_never_alone: bool = False
    """It shared, and what it takes alone is not known: neither a profile nor a time alone since."""
    first_predicted_xi: float | None = None
    """Here and below, of jobs that are remembered: what was thought when they were put together."""
    second_predicted_xi: float | None = None
    alone_device_s: float = 0.0
    """What their steps beside each other would have taken alone."""
    measured_device_s: float = 0.0
    """What they took, of devices that count in equal parts for those who hold them."""
    won_device_s: float | None = None
    """The first minus the second; null: nothing could be compared."""
    benefit: float | None
    """1 / first_xi + 1 / second_xi - 1: what sharing yields beyond taking turns."""
    verdict: Verdict
    quarantine: str = ""
    """Why the pair is not made again; empty if it may be."""


class KnownProfile(JsonView, frozen=True, kw_only=True, tag="known-profile/1"):
    """One kept profile: what it is of, and what a `ProfileView` has."""

    key: str
    kind: str = ""
    """The same for one command, code and configuration on any number of devices: what a series has in
    common."""
    user: str
    name: str
    command: tuple[str, ...]
    gpus: int
    hosts: int
    device_type: str
    batch_size: int | None
    is_complete: bool = field(name="complete")
    learned_at: Utc
    used: int
    job_id: JobId = field(name="job")
    points: tuple[ProfilePoint, ...]
    accumulates: bool | None
    memory_mib_peak: float | None
    duty_cycle: float | None
    load_s: float | None
    steps: int
    step_s: float | None = None
    source: str | None
    indicators: dict[str, IndicatorView]
    throughput: ThroughputView | None


class PolicyView(JsonView, frozen=True, kw_only=True, tag="policy/1"):
    """The policy in force."""

    policy: str
    about: str
    parameters: Parameters
    """All of them, also those that are as by default."""
    classes: ClassReport | None = None


NOT_AVAILABLE: Final = "not available: "


class PolicyOffer(JsonView, frozen=True, kw_only=True, tag="policy/1"):
    """A policy that there is."""

    policy: str
    about: str
    """One line; of one that is not available, after `NOT_AVAILABLE`, what the controller lacks for it."""
    current: bool
    available: bool
    defaults: Parameters


class PolicyPreview(JsonView, frozen=True, kw_only=True, tag="policy-preview/1"):
    """What would be done at once, had it been set."""

    policy: str
    actions: tuple[PreviewedAction, ...]
    queued: int
    """Jobs that wait now."""
    more: int = 0


class PreviewedAction(msgspec.Struct, frozen=True, kw_only=True):
    job_id: JobId = field(name="job")
    name: str
    what: str
    reason: str


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    event: str
    job_id: JobId | None
    what: str
    reason: str


# --- Replies ---------------------------------------------------------------------------------------


class Reply(ClientMessage, frozen=True, kw_only=True, tag="ok"):
    request_id: int


class Submitted(Reply, frozen=True, kw_only=True, tag="submitted"):
    job_ids: tuple[JobId, ...]
    notes: tuple[str, ...] = ()
    """What the user should know at once, e.g. why it cannot start yet."""


class Jobs(Reply, frozen=True, kw_only=True, tag="job-list"):
    jobs: tuple[JobView, ...]
    now: Utc
    more: int = 0
    """How many matched beyond those here."""
    next: int = 0
    """Of a page: `after` of the next one; 0: there is none."""


class Shown(Reply, frozen=True, kw_only=True, tag="shown"):
    job: JobDetails
    now: Utc

    @property
    def attempts(self) -> tuple[AttemptView, ...]:
        return self.job.attempts


class KnownProfiles(Reply, frozen=True, kw_only=True, tag="profile-list"):
    profiles: tuple[KnownProfile, ...]
    """Newest use last."""
    profile_s: float
    """T_prof of this controller; 0 = it profiles nothing."""
    load_s: float
    """Median of the loads it has seen, or its default."""
    more: int = 0


class Explained(Reply, frozen=True, kw_only=True, tag="explained"):
    job: JobView
    explanation: ExplanationView


class LogPart(Reply, frozen=True, kw_only=True, tag="log-part"):
    job_id: JobId
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


class Nodes(Reply, frozen=True, kw_only=True, tag="node-list"):
    nodes: tuple[NodeView, ...]
    now: Utc


class Pairs(Reply, frozen=True, kw_only=True, tag="pair-list"):
    """Those first that are not made again, then by benefit, the worst first."""

    pairs: tuple[PairView, ...]
    observations: int
    """So many measurements, both ways, make a verdict."""
    now: Utc
    more: int = 0
    """How many matched beyond `limit`."""


class SharingReport(Reply, frozen=True, kw_only=True, tag="report-view"):
    report: ReportView


class EtaScoreView(JsonView, frozen=True, kw_only=True, tag="eta-score/1"):
    """How good the intervals were that were told under one policy, of those that are kept."""

    policy: str
    kind: EtaKind
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


class Policies(Reply, frozen=True, kw_only=True, tag="policy-view"):
    current: PolicyView
    given: Parameters
    """Those of its parameters that somebody has set."""
    offers: tuple[PolicyOffer, ...]


class PolicyPreviewed(Reply, frozen=True, kw_only=True, tag="policy-previewed"):
    preview: PolicyPreview


class ControllerStatus(Reply, frozen=True, kw_only=True, tag="status-view"):
    version: str
    pid: int
    now_s: float
    wall_s: float
    uptime_s: float
    policy: str
    jobs_by_phase: dict[str, int]
    hosts: int
    devices: int
    counters: dict[str, int]
    """messages, bad_messages, events, commands, resent, ..."""
    journal: str
    endpoint: str
    journal_damages: tuple[str, ...] = ()
    """What the last scrub of the journal found wrong."""
    journal_checked_s: float | None = None
    """Since that scrub ended; None: there was none since the start."""


class Decisions(Reply, frozen=True, kw_only=True, tag="decision-list"):
    decisions: tuple[DecisionView, ...]
    now_s: float
    wall_s: float


class Done(Reply, frozen=True, kw_only=True, tag="done"):
    lines: tuple[str, ...] = ()


class Failure(Reply, frozen=True, kw_only=True, tag="failure"):
    """A refusal. `code` maps to the exit code in design 7."""

    code: Literal["refused", "usage", "not-found", "not-allowed", "never-fits", "version", "internal"]
    message: str
    hint: str = ""


AnyReply = (
    Submitted | Jobs | Shown | Explained | LogPart | Nodes | Pairs | Policies | ControllerStatus | Decisions
    | KnownProfiles | SharingReport | PolicyPreviewed | Etas | Done | Failure
)  # fmt: skip


CLIENT_MARK: Final = b"client"
"""First of a client's two frames; an agent sends its one frame alone."""


DAMAGED_JOURNAL_ADVICE: Final = (
    "jobs and decisions are not concerned. Stop the controller in order and start it: it writes a snapshot, "
    "and the next start reads nothing before it. Keep older backups, and look at the disk (dmesg, SMART)"
)
