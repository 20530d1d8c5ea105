"""What the agent's edge tells its state machine, and what the state machine asks of the edge.

Rule: `state.py` knows nothing but these. The edge carries out effects in order, and flushes every `Keep` of a
list before the first effect after it; a crash may come between any two.
"""

from __future__ import annotations

import msgspec

from cotenant.agent.daemon.core.notes import AnyNote
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.ipc.channel import ToSupervisor
from cotenant.agent.ipc.records import Order, Result, Status
from cotenant.controller import domain, wire
from cotenant.controller.system.sections import AgentSettings
from cotenant.profiler.indicators.sources import Wanted


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent is, fixed for its life but for its devices (`DevicesChanged`)."""

    report: domain.HostReport
    settings: AgentSettings = AgentSettings()
    """As its file says it."""
    session: str
    uid: int
    """The agent's own; with 0 it can run any user's jobs."""
    controllers: tuple[str, ...] = ("",)
    """Their endpoints, in the order in which the agent tries them; the name of a single one does not
    matter."""
    checkpoint_root: str
    checkpoint_every_s: float | None = None
    """Set for this agent: in place of the controller's for the gangs that this host leads."""
    saves_scripts: bool = True
    """Whether it saves scripts that know nothing of checkpoints where nothing is said about it."""
    jobside_path: str
    cgroup_root: str = ""
    """Where the agent may make groups for attempts; empty = nowhere."""
    device_regions: dict[str, str] = {}
    """By UUID: the kernel's name for the memory of a device, where attempts' groups can limit it."""
    prune_after_s: float = 14 * 86_400.0
    keep_checkpoints_s: float = 7 * 86_400.0
    mps_runtime: str = ""
    """Below it live the MPS daemons' pipe directories (`mps.environment`); empty = no MPS on this host."""
    mps_host_devices: tuple[str, ...] = ()
    """UUIDs in the order of the daemon that serves all of them, of each user; empty: one daemon each."""
    mps_percentage: float = 100.0
    """Cap on the share of a device's multiprocessors that one client gets."""
    indicators: Wanted = Wanted()
    """Where those of CUDA devices come from."""
    indicators_every_s: float = 0.0
    """How often the devices are read for heartbeats and Prometheus; 0 = never."""


class FoundAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt's folder, as it was when the agent started."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    alive: bool
    """Its supervisor runs, or is just about to."""
    rebooted: bool = False
    """Its supervisor was started before the host's last boot."""
    order: Order | None = None
    result: Result | None = None


# --- Edge -> state ---------------------------------------------------------------------------------


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the edge says."""


class Booted(AgentEvent, frozen=True, kw_only=True):
    """First of all events; the memory was handed over at construction."""

    found: tuple[FoundAttempt, ...] = ()


class AgentTicked(AgentEvent, frozen=True, kw_only=True):
    """`next_alarm_s` has come (early or late does not matter)."""

    fork_servers: domain.ForkServers | None = None
    pulls: dict[domain.JobId, str] = {}
    """How far the images of jobs have come that wait for them."""


class ControllerMessageCame(AgentEvent, frozen=True, kw_only=True):
    message: wire.ToAgent


class LinkChanged(AgentEvent, frozen=True, kw_only=True):
    """The connection to a controller has opened, or was closed or refused; only where there are several."""

    endpoint: str
    is_open: bool


class OfAttempt(AgentEvent, frozen=True, kw_only=True):
    job_id: domain.JobId
    attempt: domain.AttemptNo


class StartFailed(OfAttempt, frozen=True, kw_only=True):
    """No supervisor runs and none will: its folder, its program or the working directory is missing."""

    why: str
    workdir_missing: bool = False
    is_users: bool = False
    """What its user submitted is to blame, not this host."""
    of_host: bool = True
    """Else neither is: a registry does not answer, say."""


class Connected(OfAttempt, frozen=True, kw_only=True):
    """A new connection to the supervisor: what it was told before may be lost."""


class Disconnected(OfAttempt, frozen=True, kw_only=True):
    """The connection to the supervisor broke; the edge tries again."""


class StatusCame(AgentEvent, frozen=True, kw_only=True):
    status: Status


class EndCame(AgentEvent, frozen=True, kw_only=True):
    """`result.json` is on disk and no process of the attempt is left."""

    result: Result


class SupervisorGone(OfAttempt, frozen=True, kw_only=True):
    """The attempt's supervisor process is dead and left no result."""

    why: str = "its supervisor was killed"


class TroubleNoticed(OfAttempt, frozen=True, kw_only=True):
    """An attempt goes on with a defect that its supervisor does not know of."""

    what: str


class ShareExceeded(OfAttempt, frozen=True, kw_only=True):
    """Its user has too much on the disk of the state folder. `ends`: it may not go on."""

    what: str
    ends: bool = False


class ClientsCounted(OfAttempt, frozen=True, kw_only=True):
    """How many MPS clients each of its workers has, if more than one."""

    processes: int


class GangMessageCame(OfAttempt, frozen=True, kw_only=True):
    to_host: domain.HostId
    payload: bytes


class DevicesChanged(AgentEvent, frozen=True, kw_only=True):
    """A lock was won or lost, a device failed or came back."""

    devices: tuple[domain.Device, ...]


class IndicatorsRead(AgentEvent, frozen=True, kw_only=True):
    """What the devices do just now, for the next heartbeat."""

    readings: tuple[domain.DeviceReading, ...]


class EnergyRead(AgentEvent, frozen=True, kw_only=True):
    """What a GPU's energy counter says."""

    uuid: str
    counter_mj: int


class UnusedGpus(AgentEvent, frozen=True, kw_only=True):
    """Which attempts make steps now and have no process on any GPU, though they hold some."""

    attempts: tuple[AttemptKey, ...]


class GpuFault(AgentEvent, frozen=True, kw_only=True):
    """A fatal fault on devices: an Xid that ends what runs there, or an MPS server in FAULT.

    Attempts on them are ended and go on from their last checkpoints elsewhere or later.
    """

    uuids: tuple[str, ...]
    why: str
    """One line: "Xid 31 (GPU memory page fault)", "its MPS server is in FAULT"."""
    xid: int | None = None
    culprits: tuple[AttemptKey, ...] = ()
    """Attempts whose processes are known to have caused it."""
    device_failed: bool = False
    """The device itself: no program is to blame."""
    ends: bool = True
    """False: it is contained in the process that caused it; attempts that do not fail of it go on."""
    strangers: bool = False
    """Processes that are not ours were on the devices as well."""
    spared: tuple[AttemptKey, ...] = ()
    """Attempts that are on the devices by now and came after it."""
    one_server: bool = False
    """One MPS server serves all of them: a client on any may have caused it, and no other process has."""
    by_words: bool = False
    """The only evidence is the exit of a process."""


class MemoryFree(OfAttempt, frozen=True, kw_only=True):
    """The answer to `AwaitMemory`: its devices have their memory back."""

    cuda: dict[str, str] = {}
    """Where CUDA was tried since, by UUID: why it does not work there; empty: it does."""


class MemoryHeld(OfAttempt, frozen=True, kw_only=True):
    """The other answer to `AwaitMemory`: memory of the attempt's devices is still held long after the
    attempt. That these devices are suspect was reported before."""

    holders: dict[str, str]
    """By UUID: who, for a person."""
    cuda: dict[str, str] = {}
    """As in `MemoryFree`."""


AnyAgentEvent = (
    Booted
    | AgentTicked
    | ControllerMessageCame
    | LinkChanged
    | StartFailed
    | Connected
    | Disconnected
    | StatusCame
    | EndCame
    | SupervisorGone
    | GangMessageCame
    | DevicesChanged
    | IndicatorsRead
    | EnergyRead
    | GpuFault
    | UnusedGpus
    | MemoryFree
    | MemoryHeld
    | TroubleNoticed
    | ShareExceeded
    | ClientsCounted
)


# --- State -> edge ---------------------------------------------------------------------------------


class AgentEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the state asks for."""


class Keep(AgentEffect, frozen=True, kw_only=True):
    """Write the note and flush it to disk before any later effect."""

    note: AnyNote


class Send(AgentEffect, frozen=True, kw_only=True):
    """Send the message to the controller; it may be lost."""

    message: wire.FromAgent


class Reconnect(AgentEffect, frozen=True, kw_only=True):
    """The controller is silent or does not lead: use a fresh socket."""

    endpoint: str = ""
    """To whom; empty: to the same controller."""


class StartSupervisor(AgentEffect, frozen=True, kw_only=True):
    """Make the folder, write `order.json`, start the supervisor; `StartFailed` if that is impossible."""

    order: Order


class Adopt(AgentEffect, frozen=True, kw_only=True):
    """Watch and talk to a supervisor that is running already."""

    job_id: domain.JobId
    attempt: domain.AttemptNo


class Tell(AgentEffect, frozen=True, kw_only=True):
    """Tell the message to a connected supervisor; it may be lost if the connection breaks."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    message: ToSupervisor


class EndLeftovers(AgentEffect, frozen=True, kw_only=True):
    """End the supervisor, if it still lives, and every process of the attempt; then write this result (unless
    there is one by now) and answer `EndCame`."""

    result: Result


class AwaitMemory(AgentEffect, frozen=True, kw_only=True):
    """The attempt has ended on these GPUs: answer `MemoryFree` when their memory is back or `MemoryHeld` when
    somebody holds it, and only after reporting all faults known on them until then."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    devices: tuple[domain.Device, ...]
    failed: bool = False
    """It ended by itself, perhaps of a fault that nobody has reported yet."""
    tries_cuda: bool = False
    """Whether CUDA works on the devices is to be tried before the answer."""


class RemoveAttempt(AgentEffect, frozen=True, kw_only=True):
    job_id: domain.JobId
    attempt: domain.AttemptNo


class RemoveCheckpoints(AgentEffect, frozen=True, kw_only=True):
    """The job's folder under the checkpoint root."""

    folder: str


class AnswerLog(AgentEffect, frozen=True, kw_only=True):
    read: wire.ReadLog


class Trust(AgentEffect, frozen=True, kw_only=True):
    """A person says that all is well with this host's devices: suspects are offered again."""


class Say(AgentEffect, frozen=True, kw_only=True):
    """A line for the agent's own log."""

    text: str
    bad: bool = False


class Halt(AgentEffect, frozen=True, kw_only=True):
    """Stop the agent process; its jobs live on."""

    why: str


AnyAgentEffect = (
    Keep
    | Send
    | Reconnect
    | StartSupervisor
    | Adopt
    | Tell
    | EndLeftovers
    | RemoveAttempt
    | RemoveCheckpoints
    | AwaitMemory
    | AnswerLog
    | Trust
    | Say
    | Halt
)
