"""Everything that can happen to the cluster. The journal holds these; nothing else changes state.

Rule: an event is a fact with no opinion. Heartbeats are not events; pure reducers at the edge turn
them into `HostSilent`, `HostBack` and `ProgressSeen`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from cotenant.controller.domain.allocations import Allocation, AllocationQueue
from cotenant.controller.domain.bookings import Booking
from cotenant.controller.domain.capabilities import Capabilities
from cotenant.controller.domain.cluster import HostReport
from cotenant.controller.domain.eta import ToldEta
from cotenant.controller.domain.idling import IdleStage
from cotenant.controller.domain.ids import AttemptNo, Epoch, HostId, JobId
from cotenant.controller.domain.job_spec import JobSpec, LaunchKind
from cotenant.controller.domain.outcomes import ExitVerdict, GpuFaultRole
from cotenant.controller.domain.printed import JobWords
from cotenant.controller.performance import Profile, SeenBatch


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events; the tag is the class name."""

    can_be_left_out: ClassVar[bool] = False
    """An agent with very many unconfirmed reports may leave this event out."""


# --- From users -----------------------------------------------------------------------------------


class JobArrived(Event, frozen=True, kw_only=True, tag="JobArrived"):
    spec: JobSpec


class CancelRequested(Event, frozen=True, kw_only=True, tag="CancelRequested"):
    job_id: JobId
    by: str
    interrupt: bool = False
    """Its processes first get SIGINT, and time to end by themselves."""


class HoldRequested(Event, frozen=True, kw_only=True, tag="HoldRequested"):
    job_id: JobId
    by: str


class ReleaseRequested(Event, frozen=True, kw_only=True, tag="ReleaseRequested"):
    job_id: JobId
    by: str


class PreemptRequested(Event, frozen=True, kw_only=True, tag="PreemptRequested"):
    job_id: JobId
    by: str


class RequeueRequested(Event, frozen=True, kw_only=True, tag="RequeueRequested"):
    """A request as `PreemptRequested` is, and a job that cannot resume begins anew. A job that has ended
    waits again."""

    job_id: JobId
    by: str


class SpecChanged(Event, frozen=True, kw_only=True, tag="SpecChanged"):
    """Fields of a job's specification change: those with these names."""

    job_id: JobId
    changes: Mapping[str, str | int | float | tuple[str, ...] | None]
    by: str


class CheckpointRequested(Event, frozen=True, kw_only=True, tag="CheckpointRequested"):
    job_id: JobId
    by: str


class PolicyChanged(Event, frozen=True, kw_only=True, tag="PolicyChanged"):
    name: str
    parameters: dict[str, str | int | float | bool] = {}
    by: str = ""


class BookingMade(Event, frozen=True, kw_only=True, tag="BookingMade"):
    """Devices are reserved for a user's jobs; which, the engine chooses."""

    booking: Booking
    by: str


class BookingCancelled(Event, frozen=True, kw_only=True, tag="BookingCancelled"):
    """A reservation is over, and does not come again."""

    booking_id: str
    by: str


# --- From hosts -----------------------------------------------------------------------------------


class AttemptSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt in a host's inventory."""

    job_id: JobId
    attempt: AttemptNo
    running: bool
    """False: it has ended here and its `AttemptEnded` is (again) on its way."""
    epoch: str = ""
    """Token of the epoch in which it was launched. Here and below, empty: unknown, for its host's records of
    it are damaged; numbers must do."""
    job_epoch: str = ""
    """Of the epoch in which its job arrived."""


class JobKept(msgspec.Struct, frozen=True, kw_only=True):
    """A job without an unsettled attempt on a host that still keeps something of it."""

    job_id: JobId
    job_epoch: str = ""
    attempt: AttemptNo = AttemptNo(0)
    """The greatest that was ever started or refused there, and its epoch."""
    epoch: str = ""


class HostJoined(Event, frozen=True, kw_only=True, tag="HostJoined"):
    """An agent connected (first time, after a restart, or after an outage) with its full inventory."""

    report: HostReport
    attempts: tuple[AttemptSeen, ...] = ()
    kept: tuple[JobKept, ...] = ()
    """Jobs without an attempt here of which it keeps something (checkpoints, a fence)."""
    leaves_in_s: float | None = None
    """When it goes away (`HostReport.leaves_unix_s`), from now on; None: it stays."""


class HostSilent(Event, frozen=True, kw_only=True, tag="HostSilent"):
    host_id: HostId


class HostBack(Event, frozen=True, kw_only=True, tag="HostBack"):
    host_id: HostId


class HostLost(Event, frozen=True, kw_only=True, tag="HostLost"):
    """The lease ended (`by` = "lease"), its allocation did (`by` = "allocation"), or an admin said so (`by` =
    the admin's name)."""

    host_id: HostId
    by: str


class HostDrained(Event, frozen=True, kw_only=True, tag="HostDrained"):
    host_id: HostId
    by: str


class HostLeaving(Event, frozen=True, kw_only=True, tag="HostLeaving"):
    """The event that a host is given back: no new work, and its jobs save and go on elsewhere. A later
    allocation of the host's name starts anew."""

    host_id: HostId
    by: str


class HostResumed(Event, frozen=True, kw_only=True, tag="HostResumed"):
    """The event that brings a host back to work: it undoes drain and suspicion. A lost host comes back by
    joining."""

    host_id: HostId
    by: str


# --- From attempts (each names host and attempt; a stale attempt changes nothing) ------------------


class AttemptStarted(Event, frozen=True, kw_only=True, tag="AttemptStarted"):
    """The supervisor has started the worker processes of this host."""

    job_id: JobId
    attempt: AttemptNo
    host_id: HostId
    launch: LaunchKind = ""
    """How; empty: not known."""
    launch_why: str = ""
    """Why not warm."""


class CapabilitiesSeen(Event, frozen=True, kw_only=True, tag="CapabilitiesSeen"):
    """The job's own library said hello: what it can do, and the step it resumed from."""

    job_id: JobId
    attempt: AttemptNo
    host_id: HostId
    resumable: bool
    capabilities: Capabilities = Capabilities()
    step: int
    exact: bool | None = None
    """Whether the resume is exact; None = nothing was resumed."""
    note: str = ""
    """What makes it only equivalent."""


class FirstStepDone(Event, frozen=True, kw_only=True, tag="FirstStepDone"):
    """The event that an attempt's loading is over."""

    job_id: JobId
    attempt: AttemptNo
    host_id: HostId
    step: int
    assumed: bool = False
    """Assumed, not reported: its processes have run a while. It may load still; then its report corrects what
    was assumed."""


class ProgressSeen(Event, frozen=True, kw_only=True, omit_defaults=True, tag="ProgressSeen"):
    """Remaining time moved by 5 %, or 60 s passed."""

    job_id: JobId
    attempt: AttemptNo
    step: int
    step_s: float | None
    total_steps: int | None = None
    """In all, as far as could be seen of the script."""
    batch: SeenBatch = SeenBatch()
    alone_step_s: float | None = None
    """Its step time alone, measured while its co-tenants waited; None: it was not."""
    energy_j: float | None = None
    """What the attempt has used so far on its first host; None: not known."""


class IdleSeen(Event, frozen=True, kw_only=True, tag="IdleSeen"):
    """A job holds its devices idle, and something is done about it; or it works again."""

    job_id: JobId
    attempt: AttemptNo
    since_s: float | None
    """Since when, in the journal's time: the same for all events of one idle spell. None: it works again."""
    stage: IdleStage = ""
    """What is done now."""


class CheckpointDurable(Event, frozen=True, kw_only=True, tag="CheckpointDurable"):
    can_be_left_out = True
    job_id: JobId
    attempt: AttemptNo
    host_id: HostId
    step: int
    exact: bool = True


class TroubleSeen(Event, frozen=True, kw_only=True, tag="TroubleSeen"):
    """Something failed that does not end the attempt: a save on a full disk, a damaged checkpoint."""

    can_be_left_out = True
    job_id: JobId
    attempt: AttemptNo
    host_id: HostId
    what: str


class OutputSeen(Event, frozen=True, kw_only=True, tag="OutputSeen"):
    """What the job has told in its output or by its ranks: reported when its link is first seen, and at the
    end of an attempt that told anything. No policy is asked about it, and it changes nothing for the
    engine."""

    job_id: JobId
    attempt: AttemptNo
    host_id: HostId
    words: JobWords


class BoundLost(Event, frozen=True, kw_only=True, tag="BoundLost"):
    """What sharing may cost the job could not be kept beside a co-tenant, however long that one waited."""

    can_be_left_out = True
    job_id: JobId
    attempt: AttemptNo
    host_id: HostId
    partner: JobId
    ratio: float
    """Step time over step time alone, at the end."""


class AttemptEnded(Event, frozen=True, kw_only=True, tag="AttemptEnded"):
    """Every process of the attempt on this host is gone; its devices here are free."""

    job_id: JobId
    attempt: AttemptNo
    host_id: HostId
    verdict: ExitVerdict
    step: int = 0
    gpu_fault: GpuFaultRole = ""
    """It ended with a fatal fault on a device: it caused it, or was on the device or its MPS server then. Not
    counted as a failure of the user's, unless it had the device to itself (then the verdict says so)."""
    energy_j: float | None = None
    """What the attempt used on this host; None: not known."""
    ended_unix_s: float | None = None
    """When that was, by the host's clock; None: not known."""
    ago_s: float = 0.0
    """How long ago that was when the controller heard of it."""


class ProfileLearned(Event, frozen=True, kw_only=True, tag="ProfileLearned"):
    """What a job was seen to need while it ran alone, all of it: it replaces what was known before."""

    job_id: JobId
    profile: Profile
    attempt: AttemptNo | None = None
    host_id: HostId = HostId("")
    """The gang's first host, which measured it; empty for what came from elsewhere."""
    device_type: str = ""
    """What it was measured on."""
    is_complete: bool = True
    """T_prof is over; else its attempt ended before, or another job came to share its devices."""


class ProfilesForgotten(Event, frozen=True, kw_only=True, tag="ProfilesForgotten"):
    """A person does not trust these cached profiles (any more): they are measured anew."""

    keys: tuple[str, ...]
    by: str


class PairObserved(Event, frozen=True, kw_only=True, tag="PairObserved"):
    """Step times of two jobs while they shared, as ratios to their own times alone."""

    first: JobId
    second: JobId
    first_xi: float
    second_xi: float


# --- From computations and time -----------------------------------------------------------------------


class Computed(Event, frozen=True, kw_only=True, tag="Computed"):
    """The answer to a `Compute` action, or to what the engine asked of a job."""

    request_id: int
    model_sha256: str
    values: tuple[float, ...]
    error: str = ""
    job_id: JobId | None = None
    """That job; None for a policy's."""
    document: bytes | None = None
    """What numbers cannot hold: a trained model, as whoever asked for it wants it."""


class AlarmRang(Event, frozen=True, kw_only=True, tag="AlarmRang"):
    """Time reached the engine's next alarm (`Engine.next_alarm_s`)."""


class EpochBegan(Event, frozen=True, kw_only=True, tag="EpochBegan"):
    """A controller started on this journal, or found out that it was restored from a copy. The engine asks no
    policy about it, so that it cannot fail."""

    epoch: Epoch
    after: int
    """The last entry of the epoch before."""
    restored: bool = False
    """An agent has followed a history that this journal does not have."""
    hold_s: float = 0.0
    """Restored: how long jobs of earlier starts may still run on hosts that have not joined."""


class EtasTold(Event, frozen=True, kw_only=True, tag="EtasTold"):
    """Intervals that were told under the policy in force, to be compared with what comes. The engine asks no
    policy about them, and changes nothing."""

    at_s: float
    """Of the journal's clock: the moment they were rolled out from."""
    etas: tuple[ToldEta, ...]


class ShadowChanged(Event, frozen=True, kw_only=True, tag="ShadowChanged"):
    """The event from which on the engine asks another policy beside the one in force, and obeys it in
    nothing; an empty name ends that. The engine asks no policy about this event, and changes nothing."""

    name: str = ""
    parameters: dict[str, str | int | float | bool] = {}
    by: str = ""


class AllocationQueueChanged(Event, frozen=True, kw_only=True, tag="AllocationQueueChanged"):
    """Hosts are asked of Slurm as this says; None: not any more. Here and below: no policy is asked about it,
    and it changes nothing for the engine."""

    name: str
    queue: AllocationQueue | None
    by: str = ""
    why: str = ""


class AllocationChanged(Event, frozen=True, kw_only=True, tag="AllocationChanged"):
    """What is known of one job of Slurm's that is a host of ours."""

    allocation: Allocation


FromUser = (
    JobArrived
    | CancelRequested
    | HoldRequested
    | ReleaseRequested
    | PreemptRequested
    | RequeueRequested
    | SpecChanged
    | CheckpointRequested
    | BookingMade
    | BookingCancelled
    | PolicyChanged
    | ShadowChanged
)
FromAttempt = (
    AttemptStarted
    | CapabilitiesSeen
    | FirstStepDone
    | CheckpointDurable
    | TroubleSeen
    | OutputSeen
    | BoundLost
    | ProfileLearned
    | AttemptEnded
)
FromHost = HostJoined | HostSilent | HostBack | HostLost | HostDrained | HostLeaving | HostResumed
AnyEvent = (
    FromUser
    | FromHost
    | FromAttempt
    | ProgressSeen
    | IdleSeen
    | ProfilesForgotten
    | PairObserved
    | Computed
    | AlarmRang
    | EpochBegan
    | EtasTold
    | AllocationQueueChanged
    | AllocationChanged
)
