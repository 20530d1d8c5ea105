"""Questions about hosts (also those that are asked of Slurm), devices, pairs, profiles and the controller,
and their answers.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import field

from cotenant.controller import domain
from cotenant.controller.knowledge import PairVerdict
from cotenant.controller.performance import ProfilePoint
from cotenant.controller.wire.clients.base import Done, Question, Reply
from cotenant.controller.wire.clients.reservations import ReservedView
from cotenant.controller.wire.times import Utc
from cotenant.controller.wire.views import IndicatorView, JsonView, ReportView, ThroughputView


class ListNodes(Question["Nodes"], frozen=True, kw_only=True, tag="nodes"):
    pass


class ChangeNode(Question[Done], frozen=True, kw_only=True, tag="change-node"):
    verb: Literal["drain", "resume", "lost"]
    host_id: domain.HostId


class ListPairs(Question["Pairs"], frozen=True, kw_only=True, tag="pairs"):
    """What was measured of kinds of jobs that shared devices."""

    containing: str = ""
    """Only pairs with this in the name of either kind; empty: all."""
    limit: int = 1_000


class GetReport(Question["SharingReport"], frozen=True, kw_only=True, tag="report"):
    """What sharing and preemption brought and cost."""

    since_s: float | None = None
    """Only what happened in so many seconds before now; None: all that is remembered."""


class ListProfiles(Question["KnownProfiles"], frozen=True, kw_only=True, tag="profiles"):
    """What is kept of kinds of jobs; a user sees their own, an admin all."""


class ForgetProfiles(Question[Done], frozen=True, kw_only=True, tag="forget-profiles"):
    keys: tuple[str, ...] = ()
    """Empty: all that the asker may touch."""


class GetStatus(Question["ControllerStatus"], frozen=True, kw_only=True, tag="status"):
    """Asks the controller for its version, uptime and counters: for `doctor`, `top` and `version`."""


class Stop(Question[Done], frozen=True, kw_only=True, tag="stop"):
    """Ask the controller to end (only its own user or an admin). Jobs go on."""


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
    quiet_s: float = 0.0
    """How long nothing has run on a GPU, as far as its agent has looked."""


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    device_id: domain.DeviceId = field(name="device")
    kind: domain.DeviceKind
    type: str
    memory_mib: int
    reserve_mib: int
    planned_mib: int
    """The sum of its tenants' planned memory."""
    max_tenants: int
    sharing: domain.SharingMode
    sharing_note: str
    cores: tuple[int, ...]
    state: domain.DeviceState
    healthy: bool
    note: str
    reading: ReadingView | None = field(name="indicators", default=None)
    """The newest; None where nothing was ever read."""
    jobs: tuple[domain.JobId, ...] = ()
    idle_jobs: tuple[domain.JobId, ...] = ()
    """Those of them that hold it idle."""
    parts: tuple[float, ...] = ()
    """Of each of these jobs, where the device is divided among them."""
    jobs_planned_mib: tuple[int, ...]
    """Of each of `jobs`, in their order."""
    reserved: ReservedView | None = None
    """For whom it is reserved now or next."""
    parent: str = ""
    """Of a MIG instance, the UUID of its GPU."""

    @property
    def usable_mib(self) -> int:
        return self.memory_mib - self.reserve_mib


class NodeView(JsonView, frozen=True, kw_only=True, tag="node/1"):
    host: domain.HostId
    state: domain.HostState
    reason: str
    heartbeat_age_s: float | None
    version: str
    address: str
    cpus: int
    memory_mib: int
    features: tuple[str, ...]
    checkpoint_domain: str
    cpus_asked: int = 0
    """Of its cores, by jobs that have them or get them next."""
    memory_asked_mib: int = 0
    """Of its main memory, likewise."""
    fork_servers: domain.ForkServers | None = None
    """As it last said; None: it has not."""
    container_note: str = ""
    """Why a program of its for containers gives them no GPUs."""
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
    """Here and below, of remembered jobs: the prediction when they were placed together."""
    second_predicted_xi: float | None = None
    alone_device_s: float = 0.0
    """What their steps beside each other would have taken alone."""
    measured_device_s: float = 0.0
    """What they took, of devices that count in equal parts for those who hold them."""
    won_device_s: float | None = None
    """The first minus the second; null: nothing could be compared."""
    benefit: float | None
    """1 / first_xi + 1 / second_xi - 1: what sharing yields beyond taking turns."""
    verdict: PairVerdict
    quarantine: str = ""
    """Why the pair is not made again; empty if it may be."""


class KnownProfile(JsonView, frozen=True, kw_only=True, tag="known-profile/1"):
    """A profile that is kept: what it is of, and what a `ProfileView` has."""

    key: str
    kind: str = ""
    """The same for one command, code and configuration on any number of devices: what a series has in
    common."""
    user: str
    name: str
    command: domain.OfCommand[tuple[str, ...]]
    gpus: int
    hosts: int
    device_type: str
    batch_size: int | None
    is_complete: bool = field(name="complete")
    learned_at: Utc
    used: int
    job_id: domain.JobId = field(name="job")
    points: tuple[ProfilePoint, ...]
    modelled: tuple[ProfilePoint, ...] = ()
    accumulates: bool | None
    memory_mib_peak: float | None
    static_mib: float | None = None
    duty_cycle: float | None
    load_s: float | None
    steps: int
    step_s: float | None = None
    source: str | None
    indicators: dict[str, IndicatorView]
    throughput: ThroughputView | None
    family: str = ""
    """The same for all profiles of one program with the same words and other numbers, on as many devices of
    one type; empty: not known."""
    family_words: domain.OfCommand[tuple[str, ...]] = ()
    """The words of their commands with `#` for each number."""
    family_run_s: tuple[float, ...] = ()
    """How long the last runs of the family trained, in ascending order."""


class KnownProfiles(Reply, frozen=True, kw_only=True, tag="profile-list"):
    profiles: tuple[KnownProfile, ...]
    """Newest use last."""
    profile_s: float
    """T_prof of this controller; 0 = it profiles nothing."""
    load_s: float
    """Median of the loads it has seen, or its default."""
    more: int = 0


class Nodes(Reply, frozen=True, kw_only=True, tag="node-list"):
    nodes: tuple[NodeView, ...]
    now: Utc


class Pairs(Reply, frozen=True, kw_only=True, tag="pair-list"):
    """A list of pairs: first those that are not made again, then the others by benefit, the worst first."""

    pairs: tuple[PairView, ...]
    observations: int
    """So many measurements, both ways, make a verdict."""
    now: Utc
    more: int = 0
    """How many matched beyond `limit`."""


class SharingReport(Reply, frozen=True, kw_only=True, tag="report-view"):
    report: ReportView


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
    asker: str = ""
    """Who asked, as their key says."""
    asker_is_admin: bool = False


DAMAGED_JOURNAL_ADVICE: Final = (
    "jobs and decisions are not concerned. Stop the controller in order and start it: it writes a snapshot, "
    "and the next start reads nothing before it. Keep older backups, and look at the disk (dmesg, SMART)"
)


ClusterRequest = (
    ListNodes | ChangeNode | ListPairs | GetReport | ListProfiles | ForgetProfiles | GetStatus | Stop
)
ClusterReply = KnownProfiles | Nodes | Pairs | SharingReport | ControllerStatus


class AddAllocations(Question[Done], frozen=True, kw_only=True, tag="add-allocations"):
    """Ask Slurm for hosts from now on, as jobs need them."""

    terms: domain.AllocationTerms


class ChangeAllocations(Question[Done], frozen=True, kw_only=True, tag="change-allocations"):
    verb: Literal["pause", "resume", "remove"]
    name: str


class ListAllocations(Question["AllocationQueues"], frozen=True, kw_only=True, tag="allocations"):
    pass


class GetAllocationLog(Question["AllocationLog"], frozen=True, kw_only=True, tag="allocation-log"):
    name: str = ""
    """Empty: all queues."""
    limit: int = 100


class AllocationView(msgspec.Struct, frozen=True, kw_only=True):
    """A Slurm job that is an allocation."""

    host: domain.HostId
    state: domain.AllocationState
    slurm_id: str | None
    node: str | None
    why: str
    asked_at: Utc
    leaves_at: Utc | None
    """When its jobs save and leave; None: its host has not joined."""
    jobs: tuple[str, ...]


class AllocationQueueView(JsonView, frozen=True, kw_only=True, tag="allocation-queue/1"):
    name: str
    is_paused: bool
    is_removed: bool
    why: str
    """What is asked for now, or why nothing is."""
    decided: bool
    """False: the controller has not asked Slurm since the queue was added or the controller started."""
    working: int
    coming: int
    terms: domain.AllocationTerms
    failures: int
    """Requests in a row that brought no host."""
    added_by: str
    allocations: tuple[AllocationView, ...]


class AllocationQueues(Reply, frozen=True, kw_only=True, tag="allocation-queues"):
    queues: tuple[AllocationQueueView, ...]
    now: Utc


class AllocationLine(JsonView, frozen=True, kw_only=True, tag="allocation-line/1"):
    at: Utc
    queue: str
    text: str


class AllocationLog(Reply, frozen=True, kw_only=True, tag="allocation-lines"):
    lines: tuple[AllocationLine, ...] = field(default=())
    now: Utc


AllocationRequest = AddAllocations | ChangeAllocations | ListAllocations | GetAllocationLog
AllocationReply = AllocationQueues | AllocationLog
