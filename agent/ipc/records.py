"""An attempt's folder on the host: who runs, how it was asked for, how it ended.

Rule: the supervisor writes `supervisor.json`, `status.json` and `result.json`; the agent writes
`order.json` before it starts the supervisor, and never changes it. Files are written to a temporary
name, fsynced and renamed, and carry `RECORD_VERSION`.

    <agent state>/attempts/<job>-a<attempt>/
        order.json       what to start (mode 0600: the job's environment, but no secrets)
        supervisor.json  identity of the supervisor: pid, start time, boot id
        status.json      the supervisor's last durable facts, for an agent that comes back late
        result.json      how it ended; written once, after every process of the attempt is gone
        control.sock     the supervisor listens here for its agent (see channel.py)
        job/             the job-side sockets: cotenant.sock, rank-0.sock, ...
        logs/rank-0.log  bounded; beside it rank-0.errors, where standard error is kept apart

"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller import domain, performance
from cotenant.profiler.indicators.sources import Wanted

ORDER: Final = "order.json"
SUPERVISOR: Final = "supervisor.json"
STATUS: Final = "status.json"
RESULT: Final = "result.json"
UNCLEAN: Final = "unclean"
"""The clean-up after its supervisor ended an MPS client of it without the daemon's help."""
CONTROL: Final = "control.sock"
JOB: Final = "job"
JOB_SOCKET: Final = "cotenant.sock"
LOGS: Final = "logs"
CANNOT_BEGIN: Final = 4
"""Exit code of a supervisor that could not make its files: nothing of the job's has run."""
MODULES: Final = "modules.json"
"""In `job/`: what a rank had imported at its first step, or when it ended."""


def attempt_folder(attempts: Path, job_id: str, attempt: int) -> Path:
    return attempts / f"{job_id}-a{attempt}"


def job_socket(folder: Path) -> Path:
    """What the ranks find in COTENANT_SOCKET.

    `job/` is a link to a shorter place where the folder's own path is too long for a socket address.
    """
    return (folder / JOB).resolve() / JOB_SOCKET


FOLDER_NAME: Final = re.compile(r"(?P<job>[0-9A-Za-z_]+)-a(?P<attempt>\d+)")


RECORD_VERSION: Final = 1


class RankOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start: a worker, or the only one of its host where `launch.mode` is host or process."""

    rank: int
    local_rank: int
    cores: tuple[int, ...] = ()
    """Pin to these (CPU slots); empty = no pinning."""
    cuda_uuids: tuple[str, ...] = ()
    """CUDA_VISIBLE_DEVICES for it: all the gang's devices on this host, or its own alone where that has an
    MPS daemon of its own (`local_rank` is then 0)."""
    env: dict[str, str] = {}
    """What differs from rank to rank, beyond RANK, LOCAL_RANK and the like."""


class MpsClient(msgspec.Struct, frozen=True, kw_only=True):
    """How the attempt's processes are clients of an MPS daemon: what `mps.environment` needs."""

    pipe_directory: str
    device_uuid: str
    """The device that this daemon serves; empty: all of the host's."""
    device_numbers: tuple[int, ...] = ()
    """By which numbers a daemon for all of the host's devices knows those of a process, in their order; they
    are its own, so they are known when the attempt is started."""
    memory_limit_mib: int | None = None
    """Per device, of each client; None = no limit."""
    active_thread_percentage: float | None = None


class WatchRule(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job may make no optimizer step before it is taken to hang: see `watchdog.py`."""

    floor_s: float
    """Never less than this."""
    multiple: float = 0.0
    """Of the usual step time; 0: `floor_s` was declared for this job and is all that counts."""


class WarmOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the ranks may be forked from a server that has imported their packages."""

    server: str = ""
    """Its socket; empty: there is none for this attempt."""
    why: str = ""
    """Why there is none: a code of `agent/warm/refusals.py`."""
    detail: str = ""
    first_word_s: float = 2.0
    """How long a server and each rank have to say their first word."""
    learns: bool = False
    """The ranks write down what they have imported, so that a server can be started for their like."""


class ContainerRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """The program that starts an attempt's containers on this host."""

    name: str
    """One of `RUNTIMES`."""
    program: str
    oci: str = ""
    """What podman starts processes with, if that is not its own choice."""
    no_gpus: str = ""
    """Why it gives containers none of this host's GPUs; empty: it does."""
    image: str = ""
    """The job's image as it is known here, once it has been pulled or loaded."""
    to_controller: tuple[str, ...] = ()
    """Paths of the host without which its processes cannot ask the controller: the folder of its socket, or
    the user's key."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """All that a supervisor needs; complete, so that it never asks back."""

    version: int = RECORD_VERSION
    start: domain.StartAttempt
    """The command, as it came; what a setting of this agent overrules is changed in it."""
    secrets: dict[str, str] = {}
    """In memory alone: see `files.py`."""
    world_size: int
    ranks: tuple[RankOrder, ...]
    numbers_devices: bool = False
    """CUDA_VISIBLE_DEVICES holds indices in the order of the bus, not UUIDs."""
    torch_limit_mib: int | None = None
    """What torch is held to in each process, of each of its GPUs: memory_cap_mib, by the processes of a
    worker that open one."""
    device_regions: tuple[str, ...] = ()
    """The kernel's names for the memory of its devices here: memory_cap_mib is enforced on each, where that
    works. Empty: it cannot, or nothing is planned."""
    mps: tuple[MpsClient, ...] = ()
    """The daemons that its processes attach to: one for all, or one per worker of this host in rank order;
    empty: without MPS."""
    collective_scale: float = 1.0
    """Times torch's own time limits for collectives, where the job sets none: more where devices are
    shared."""
    watch: WatchRule | None = None
    """None: its steps are not watched."""
    notes: tuple[str, ...] = ()
    """Notes on what its user may not expect, shown once when the attempt starts."""
    checkpoint_root: str
    """The job's own folder."""
    lease_s: float | None
    indicators: Wanted = Wanted()
    """Where a profile's indicators come from on CUDA devices."""
    start_deadline_s: float
    log_bytes_max: int
    network: str = ""
    controller: str = ""
    """Where what runs in the job finds the controller, from this host: endpoints between commas."""
    jobside_path: str
    """Folder for PYTHONPATH that holds only `cotenant/checkpoint` and `cotenant/gradaccum`."""
    warm: WarmOffer = WarmOffer()
    runtime: ContainerRuntime | None = None
    """Of a job with an image; None: its processes are the host's own."""
    cgroup: str = ""
    """Where the attempt's processes go, if the agent may make cgroups; empty = own session only."""

    @property
    def job_id(self) -> domain.JobId:
        return self.start.job_id

    @property
    def attempt(self) -> domain.AttemptNo:
        return self.start.attempt

    @property
    def host_id(self) -> domain.HostId:
        return self.start.host_id

    @property
    def launch(self) -> domain.Launch:
        return self.start.launch

    @property
    def gang(self) -> tuple[domain.GangMember, ...]:
        return self.start.gang

    @property
    def slots_each(self) -> int:
        """CPU slots of each process here. The main memory of one that has several counts on them in equal
        parts."""
        if self.launch.mode != "process" or any(rank.cuda_uuids for rank in self.ranks):
            return 1
        return sum(len(member.devices) for member in self.gang)

    @property
    def is_first_host(self) -> bool:
        """The first host's supervisor coordinates stops and saves of the whole gang."""
        return self.gang[0].host_id == self.host_id


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process, safe against reuse of its pid."""

    version: int = RECORD_VERSION
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""
    boot_id: str


class Durable(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    name: str
    exact: bool


class StepClock(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one rank, and how long they took, both since the attempt began; saves are left out."""

    steps: int = 0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    """Of that, for co-tenants."""
    longest_s: float = 0.0
    """The longest step of those told last, without such waits; 0: not told."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """All that a supervisor knows, sent whole on every change: the agent compares it with what it had."""

    version: int = RECORD_VERSION
    job_id: domain.JobId
    attempt: domain.AttemptNo
    started: bool = False
    """The worker processes have been started."""
    launch: domain.LaunchKind = ""
    """How; empty: not yet."""
    launch_why: str = ""
    """Why not warm, for a person."""
    resumable: bool | None = None
    """From the job's hello; None = no hello (yet)."""
    capabilities: domain.Capabilities = domain.Capabilities()
    start_step: int = 0
    exact: bool | None = None
    """Whether the resume is exact; None = this attempt resumed nothing."""
    note: str = ""
    """What makes it only equivalent."""
    went_otherwise: str = ""
    """How it did not go on as it was left; empty: nothing of that was seen."""
    watched: bool = False
    """Its first step will be seen, and is still waited for."""
    first_step: int | None = None
    """The step count at the first finished step of this attempt."""
    step: int = 0
    step_s: float | None = None
    clock: StepClock = StepClock()
    loss: float | None = None
    words: domain.JobWords = domain.JobWords()
    length: domain.SeenLength = domain.SeenLength()
    batch: performance.SeenBatch = performance.SeenBatch()
    memory_mib: float | None = None
    duty_cycle: float | None = None
    activity: int | None = None
    """Counts looks at which its processes worked; None: there was none yet."""
    held_up: bool = False
    """Somebody has stopped a process of it."""
    saving: bool = False
    stop_step: int | None = None
    """The agreed stop step, once committed."""
    durable: tuple[Durable, ...] = ()
    """The newest few."""
    failed: tuple[str, ...] = ()
    """Newest few `failed` messages: "save: No space left on device"."""
    farewell: tuple[str, ...] = ()
    """Which steps ended its processes, in order: "terminate_client: 2 done", "SIGTERM", "SIGKILL"."""
    profile: performance.Profile | None = None
    """What was measured of it in place, the newest; None if nothing was."""
    profile_no: int = 0
    """Counts what `profile` was."""
    profile_complete: bool = False
    """T_prof is over: there will be no newer one."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How the attempt ended on this host, decided by `exit_classifier`."""

    version: int = RECORD_VERSION
    status: Status
    """The last one, for it may have been lost."""
    verdict: domain.ExitVerdict
    gpu_fault: domain.GpuFaultRole = ""
    """Set by the agent, which knows who else was on the device."""
    ended_unix_s: float | None = None
    """When its last process had gone, by this host's clock; None: not known."""
    unclean: bool = False
    """An MPS client of it was signalled although its daemon had not taken it back."""

    @property
    def job_id(self) -> domain.JobId:
        return self.status.job_id

    @property
    def attempt(self) -> domain.AttemptNo:
        return self.status.attempt

    @property
    def step(self) -> int:
        return self.status.step
