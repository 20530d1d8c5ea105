"""Messages between the controller and its agents.

Delivery: ZeroMQ may lose, repeat and (over reconnects) reorder. Commands are sent again until
`CommandAck`; reports are sent again until `ReportAck`; both sides are idempotent. An agent keeps
unacknowledged reports on disk, so that an unheard end survives its restart.

Epochs: every start of a controller is one (`domain.epochs`). An agent follows that of its last `Welcome` and
obeys no command of another.

Lease: an agent counts its lease from the moment it *sent* the heartbeat that a `Renew` answers; the
controller from the moment it sent that `Renew`, which is later. So the agent's always ends first.
"""

from __future__ import annotations

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.performance import SeenBatch
from cotenant.controller.wire.streams import StreamAsk, StreamTold

DEVICES_MAX = 1024


class AgentMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m"):
    """Base of what agents and controller say to each other."""


# --- Agent -> controller ---------------------------------------------------------------------------


class Hello(AgentMessage, frozen=True, kw_only=True, tag="hello"):
    """First message of every connection; repeated until `Welcome` with the same session arrives."""

    session: str
    """Random per agent start: the controller refuses a second agent that claims a live host."""
    report: domain.HostReport
    attempts: tuple[ev.AttemptSeen, ...]
    number: int = 0
    """Counts the hellos of one session. The controller ignores one that arrives after a later one: its
    inventory lacks what has started since, and the controller would stop that."""
    followed: domain.Followed = domain.Followed()
    kept: tuple[ev.JobKept, ...] = ()
    """Other jobs of which this host keeps something and has not been told to forget."""


class BoundStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How what sharing may cost a job stands, over the last minute."""

    share_max: float | None = None
    """The bound that counts beside its present co-tenants; None: none does."""
    alone_step_s: float | None = None
    """Its step time alone, measured while nobody else trained on its devices; None: not known yet."""
    ratio_p50: float | None = None
    ratio_p99: float | None = None
    """Step time over step time alone; None: there was nothing to compare."""
    guest_pace: float = 1.0
    """The part of the time that its co-tenants may train."""
    guests_in_phase: bool = False
    """Their micro-batches begin only at a certain place in its steps."""


class IdleReading(msgspec.Struct, frozen=True, kw_only=True):
    """How long an attempt has used none of its devices on a host."""

    idle_s: float
    """Time in which it is known that nothing happened, since it last worked or since the agent's start."""
    active_ago_s: float | None = None
    """When it was last seen to work; None: not since the agent's start."""


class AttemptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A running attempt's progress, as a heartbeat tells it. The struct is not an event: see `HostSilent`,
    `ProgressSeen`."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    step: int
    step_s: float | None = None
    """Median seconds per step over the last reports."""
    loss: float | None = None
    words: domain.JobWords = domain.JobWords()
    memory_mib: float | None = None
    """Peak per device so far."""
    duty_cycle: float | None = None
    length: domain.SeenLength = domain.SeenLength()
    batch: SeenBatch = SeenBatch()
    bound: BoundStanding | None = None
    """None: nothing bounds what sharing may cost it."""
    pace: float = 1.0
    """The part of the time that it may train, so that a co-tenant keeps its bound."""
    idle_for: IdleReading | None = None
    """None: not known."""
    energy_j: float | None = None
    """What it has used on this host so far; None: not known."""


class Heartbeat(AgentMessage, frozen=True, kw_only=True, tag="beat"):
    beat: int
    session: str
    progress: tuple[AttemptProgress, ...] = ()
    devices: tuple[domain.DeviceReading, ...] = ()
    """Those that the agent has read since the last heartbeat; never journalled, and no decision uses them."""
    fork_servers: domain.ForkServers | None = None
    """Likewise; None: warm starts are off."""
    pulls: dict[domain.JobId, str] = {}
    """Likewise: how far the images of jobs have come that wait for them."""

    def __post_init__(self) -> None:
        if len(self.devices) > DEVICES_MAX:
            raise ValueError(f"a heartbeat has at most {DEVICES_MAX} devices, got {len(self.devices)}")


class Report(AgentMessage, frozen=True, kw_only=True, tag="report"):
    """A fact about an attempt, numbered per host over all restarts of the agent."""

    sequence: int
    event: ev.FromAttempt
    epoch: str = ""
    """Token of the epoch in which the attempt was launched."""
    job_epoch: str = ""


class CommandAck(AgentMessage, frozen=True, kw_only=True, tag="command-seen"):
    """The command is on the agent's disk (or was there already)."""

    command_id: domain.CommandId
    epoch: str = ""


class NotFollowed(AgentMessage, frozen=True, kw_only=True, tag="not-followed"):
    """The answer to a command of an epoch that this agent does not follow and has not obeyed."""

    epoch: str
    """Of the command."""


class LogReply(AgentMessage, frozen=True, kw_only=True, tag="log"):
    request: int
    data: bytes
    next_offset: int
    at_end: bool
    """There is nothing more at present."""
    closed: bool
    """Nothing more ever: the attempt has ended and `next_offset` is the end."""
    missing: str = ""
    """Why there is nothing, if there is nothing."""
    is_error: bool = False
    """It is standard error, which was asked for apart."""


class GangRelay(AgentMessage, frozen=True, kw_only=True, tag="gang"):
    """Between the supervisors of one gang, relayed by the controller, which does not look inside."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    to_host: domain.HostId
    from_host: domain.HostId
    payload: bytes


class FetchSnapshot(AgentMessage, frozen=True, kw_only=True, tag="fetch-snapshot"):
    """Asks for the next part of the snapshot of an attempt that is to start on this host. The agent asks for
    one part at a time, and again for a part that does not come."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    offset: int


class StreamReply(AgentMessage, frozen=True, kw_only=True, tag="stream"):
    request: int
    told: StreamTold


FromAgent = (
    Hello | Heartbeat | Report | CommandAck | NotFollowed | LogReply | GangRelay | FetchSnapshot | StreamReply
)


# --- Controller -> agent ---------------------------------------------------------------------------


class Welcome(AgentMessage, frozen=True, kw_only=True, tag="welcome"):
    session: str
    lease_s: float | None
    """None: this controller and agent share one machine, and jobs have no lease."""
    reports_seen: int
    """The highest report number of this host that is durable here."""
    journal: str = ""
    """Random name of the controller's journal, made with it. Job and command numbers mean something only
    within one journal: an agent never mixes two (a new job 1 must not find the old job 1's checkpoints)."""
    epoch: domain.Epoch = domain.Epoch()
    """What the agent follows from now on."""
    reached: int = 0
    """The last entry of the journal; here and below, on disk."""
    restored: bool = False
    """The journal was put back from a copy and lacks what the agent has followed. The agent first says hello
    again, with everything that it has; neither side sends anything else before."""


class Renew(AgentMessage, frozen=True, kw_only=True, tag="renew"):
    beat: int
    reached: int = 0


class ReportAck(AgentMessage, frozen=True, kw_only=True, tag="report-seen"):
    """All reports up to this number are durable."""

    sequence: int


class CommandDelivery(AgentMessage, frozen=True, kw_only=True, tag="obey"):
    command: domain.AgentCommand
    secrets: dict[str, str] = {}
    """Only with StartAttempt: values of `launch.secrets`, never journalled."""
    session: str = ""
    beat: int = 0
    """The newest `Heartbeat` (of that session) that the controller had when it sent this. The agent refuses a
    StartAttempt that arrives when that beat's lease is nearly over: the job may run elsewhere by now."""
    epoch: str = ""
    reached: int = 0


class ReadLog(AgentMessage, frozen=True, kw_only=True, tag="read-log"):
    request: int
    job_id: domain.JobId
    attempt: domain.AttemptNo
    rank: int
    offset: int
    """Negative: counted from the end."""
    limit: int
    wait_s: float = 0.0
    """Hold the answer back at most this long when there is nothing new (follow)."""
    job_epoch: str = ""
    """The agent does not answer with logs of another job of this number."""
    errors_apart: bool = False
    """A piece is to have output or standard error, not both."""


class SnapshotPart(AgentMessage, frozen=True, kw_only=True, tag="snapshot-part"):
    """The answer to `FetchSnapshot`."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    offset: int
    data: bytes
    missing: str = ""
    """Why the controller has no such snapshot, for a person."""


class TellJob(AgentMessage, frozen=True, kw_only=True, tag="tell-job"):
    """A line for the user of a running job, into its log; it may be lost."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    text: str


class AskStream(AgentMessage, frozen=True, kw_only=True, tag="ask-stream"):
    """For an attempt's supervisor. Neither controller nor agent keep anything of a stream."""

    request: int
    job_id: domain.JobId
    attempt: domain.AttemptNo
    ask: StreamAsk
    job_epoch: str = ""

    @property
    def wait_s(self) -> float:
        return self.ask.wait_s


class HostRefused(AgentMessage, frozen=True, kw_only=True, tag="refused"):
    """Tells an agent that it may not work here (wrong key, wrong version, host name taken); the agent stops
    trying."""

    why: str


class NotLeading(AgentMessage, frozen=True, kw_only=True, tag="not-leading"):
    """The answer of a controller that does not lead to every message of an agent."""

    leader: str = ""
    """The endpoint of the one that does; empty: not known."""


ToAgent = (
    Welcome
    | Renew
    | ReportAck
    | CommandDelivery
    | ReadLog
    | SnapshotPart
    | GangRelay
    | AskStream
    | TellJob
    | HostRefused
    | NotLeading
)
