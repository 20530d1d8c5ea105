"""Messages between the controller and command lines: one request, one reply.

Every request may be sent again with the same `request_id` after a time-out; the controller answers a
repeated submission with the ids it gave the first time.
"""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import msgspec

from cotenant.controller.domain.cluster import HostReport, HostState
from cotenant.controller.domain.ids import HostId, JobId
from cotenant.controller.domain.indicators import DeviceReading
from cotenant.controller.domain.job import Capabilities, JobSpec, Phase, SeenLength
from cotenant.controller.domain.pairs import Verdict
from cotenant.controller.domain.perf import Profile

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
    verb: Literal["cancel", "hold", "release", "preempt", "checkpoint"]
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


class GetPolicy(Question["PolicyView"], frozen=True, kw_only=True, tag="policy"):
    pass


class SetPolicy(Question["Done"], frozen=True, kw_only=True, tag="set-policy"):
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
    | ChangeNode | GetPolicy | SetPolicy | GetStatus | GetDecisions | ListProfiles | ForgetProfiles | Stop
)  # fmt: skip


class Request(msgspec.Struct, frozen=True, kw_only=True):
    request_id: int
    body: AnyRequest


# --- Replies ---------------------------------------------------------------------------------------


class JobView(Capabilities, frozen=True, kw_only=True):
    """One job as users see it. Times are seconds of the journal; `at_wall_s` of the reply maps them."""

    job_id: JobId
    name: str
    user: str
    phase: Phase
    reason: str
    reason_code: str
    attempt: int
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
    step_s: float | None
    loss: float | None
    resumable: bool
    remaining_s: float | None
    estimate_source: str
    durable_step: int
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    wait_s: float
    load_s: float
    run_s: float
    pause_s: float
    preemptions: int
    exit_code: int | None
    job_class: str
    share: str
    futile_s: float = 0.0
    """Part of `load_s` that ended in a preemption before the first step."""
    futile_preemptions: int = 0
    aborted_preemptions: int = 0
    expected_load_s: float | None = None
    """What its next load should take: said, else measured on it or on its like."""
    expected_pause_s: float | None = None
    """What saving and leaving should take."""
    length: SeenLength = SeenLength()


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job on its devices, for timelines and `show`."""

    attempt: int
    devices: tuple[str, ...]
    co_tenants: tuple[JobId, ...]
    accumulation_steps: int
    launched_s: float
    first_step_s: float | None
    first_step: int | None
    stop_requested_s: float | None
    ended_s: float | None
    outcome: str
    reason: str
    end_step: int = 0
    start_step: int = 0
    exact: bool | None = None


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    report: HostReport
    state: HostState
    reason: str
    tenants: dict[str, tuple[JobId, ...]]
    planned_mib: dict[str, int]
    """Per device: the sum of its tenants' planned memory."""
    heartbeat_age_s: float | None
    readings: dict[str, DeviceReading] = {}
    """Per device: the newest, its age counted until now; those that never came are left out."""


class PairView(msgspec.Struct, frozen=True, kw_only=True):
    """Two kinds of jobs that have shared devices. A kind is a command with its batch and its GPUs."""

    first: str
    second: str
    first_xi: float | None
    """Iteration time beside the other / alone; None: never measured in this direction."""
    second_xi: float | None
    first_count: int
    second_count: int
    benefit: float | None
    """1 / first_xi + 1 / second_xi - 1: what sharing yields beyond taking turns."""
    verdict: Verdict
    quarantine: str = ""
    """Why the pair is not made again; empty if it may be."""
    first_never_alone: bool = False
    second_never_alone: bool = False
    """It shared, and what it takes alone is not known: neither a profile nor a time alone since."""


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    event: str
    job_id: JobId | None
    what: str
    reason: str


class Reply(ClientMessage, frozen=True, kw_only=True, tag="ok"):
    request_id: int


class Submitted(Reply, frozen=True, kw_only=True, tag="submitted"):
    job_ids: tuple[JobId, ...]
    notes: tuple[str, ...] = ()
    """What the user should know at once, e.g. why it cannot start yet."""


class Jobs(Reply, frozen=True, kw_only=True, tag="job-list"):
    jobs: tuple[JobView, ...]
    now_s: float
    wall_s: float
    """Wall-clock seconds since the epoch at `now_s`."""
    more: int = 0
    """How many matched beyond those here."""
    next: int = 0
    """Of a page: `after` of the next one; 0: there is none."""


class Shown(Reply, frozen=True, kw_only=True, tag="shown"):
    job: JobView
    spec: JobSpec
    attempts: tuple[AttemptView, ...]
    now_s: float
    wall_s: float
    profile: Profile | None = None
    """What is known of its needs: measured on it, kept from its like, or said with it."""
    profile_given: bool = False
    """It came with the submission, or from a like job before it."""


class KnownProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One kept profile."""

    key: str
    user: str
    name: str
    command: tuple[str, ...]
    gpus: int
    hosts: int
    device_type: str
    batch_size: int | None
    profile: Profile
    is_complete: bool
    learned_s: float
    used: int
    job_id: JobId
    kind: str = ""
    """The same for one command, code and configuration on any number of devices: what a series has in
    common."""


class KnownProfiles(Reply, frozen=True, kw_only=True, tag="profile-list"):
    profiles: tuple[KnownProfile, ...]
    """Newest use last."""
    profile_s: float
    """T_prof of this controller; 0 = it profiles nothing."""
    load_s: float
    """Median of the loads it has seen, or its default."""
    now_s: float
    wall_s: float
    more: int = 0


class Explained(Reply, frozen=True, kw_only=True, tag="explained"):
    job: JobView
    lines: tuple[str, ...]
    """First the present answer, then the history of decisions, newest first."""
    now_s: float
    wall_s: float


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
    now_s: float
    wall_s: float


class Pairs(Reply, frozen=True, kw_only=True, tag="pair-list"):
    """Those first that are not made again, then by benefit, the worst first."""

    pairs: tuple[PairView, ...]
    observations: int
    """So many measurements, both ways, make a verdict."""
    now_s: float
    wall_s: float
    more: int = 0
    """How many matched beyond `limit`."""


class PolicyView(Reply, frozen=True, kw_only=True, tag="policy-view"):
    name: str
    parameters: Parameters
    available: dict[str, str]
    """Name -> one line about it."""
    defaults: dict[str, Parameters]
    unavailable: dict[str, str] = {}
    """Name -> what the controller lacks for it."""


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
    Submitted | Jobs | Shown | Explained | LogPart | Nodes | Pairs | PolicyView | ControllerStatus | Decisions
    | KnownProfiles | Done | Failure
)  # fmt: skip


CLIENT_MARK: Final = b"client"
"""First of a client's two frames; an agent sends its one frame alone."""


DAMAGED_JOURNAL_ADVICE: Final = (
    "jobs and decisions are not concerned. Stop the controller in order and start it: it writes a snapshot, "
    "and the next start reads nothing before it. Keep older backups, and look at the disk (dmesg, SMART)"
)
