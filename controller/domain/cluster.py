"""Hosts and devices as the controller knows them, and what jobs leave of a host's cores and main memory.

Rule: what a job asks of its hosts counts once on each host of its gang, from the command that starts it until
its last process there is gone; a job that asks for nothing counts as nothing. A host that does not say how
much memory it has limits none.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import inf
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from cotenant.controller.domain.ids import DeviceId, HostId
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.job_spec import MIG_TYPE, JobSpec
from cotenant.controller.domain.reasons import Reason

DeviceKind = Literal["cuda", "cpu"]
SharingMode = Literal["time-slicing", "mps"]
DeviceState = Literal["ok", "suspect", "draining", "lost"]
"""ok: offered. suspect: it had trouble, and gets new work when it proves itself. draining: what runs there
may go on, nothing new starts. lost: it does not answer any more, and what ran there is gone."""


FOREIGN: Final = "in use by "
"""So begins the note of a device that processes hold which are no job's; it names them and whose they are."""
DIVIDED: Final = "divided into "
"""So begins the note of a GPU that is not offered because its MIG instances are."""
HELD_MIB_MIN: Final = 512
"""Device memory without a visible owner: less is rounding, and what the driver keeps per process."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, or a CPU slot that stands in for one."""

    device_id: DeviceId
    host_id: HostId
    kind: DeviceKind
    type: str
    """Product name without spaces (`NVIDIA-H200`), or `cpu`."""
    local: str
    """What the agent calls it: the UUID of the GPU or MIG instance, or the CPU slot's number."""
    memory_mib: int
    reserve_mib: int = 0
    """Measured driver reserve; never planned with."""
    max_tenants: int = 2
    cores: tuple[int, ...] = ()
    """CPU slots: the cores its workers are pinned to."""
    sharing: SharingMode = "time-slicing"
    sharing_note: str = ""
    """Where co-tenants time-slice: why not through MPS. Where they use MPS: further notes."""
    limits_jobs: bool = False
    """The kernel there can limit what a job as a whole takes of its memory."""
    divides: bool = False
    """Parts of it can be given out, and a job be held to its part: to cores, or by MPS or the kernel to
    memory."""
    state: DeviceState = "ok"
    """The agent's judgement; a device that is not ok is not healthy either."""
    healthy: bool = True
    """Whether it takes new work."""
    note: str = ""
    """Why it is not offered, if it is not (locked by another agent, lost, foreign process)."""
    parent: str = ""
    """Of a MIG instance, the UUID of its GPU; empty: it is none. It is never shared, nor divided."""

    def __post_init__(self) -> None:
        if self.memory_mib < 1 or self.reserve_mib < 0 or self.max_tenants < 1:
            raise ValueError(f"{self.device_id}: memory and tenants must be positive, got {self}")
        if self.sharing == "mps" and self.kind != "cuda":
            raise ValueError(f"{self.device_id}: MPS needs a CUDA device")
        if self.parent and not self.type.startswith(MIG_TYPE):
            raise ValueError(f"{self.device_id}: the type of a MIG instance begins with {MIG_TYPE}")
        if self.parent and (self.max_tenants > 1 or self.divides or self.sharing == "mps"):
            raise ValueError(f"{self.device_id}: a MIG instance takes one job and is not divided")

    @property
    def usable_mib(self) -> int:
        return self.memory_mib - self.reserve_mib


class SaysSharing(Protocol):
    """A device, or a view of one."""

    @property
    def sharing(self) -> SharingMode: ...
    @property
    def sharing_note(self) -> str: ...
    @property
    def parent(self) -> str: ...


def sharing_in_words(device: SaysSharing) -> str:
    """How co-tenants share a GPU, for a person."""
    if device.parent:
        return device.sharing_note
    how = "MPS" if device.sharing == "mps" else "time-slicing"
    return f"{how}: {device.sharing_note}" if device.sharing_note else how


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says of its host when it joins."""

    host_id: HostId
    devices: tuple[Device, ...]
    features: tuple[str, ...] = ()
    cpus: int = 1
    memory_mib: int = 0
    address: str = "127.0.0.1"
    """Where rank 0 listens for the rendezvous when a gang starts on this host."""
    port_first: int = 29500
    port_count: int = 200
    checkpoint_domain: str = ""
    """Hosts with one domain see one file system under `checkpoint.root`; empty = this host alone."""
    version: str = ""
    allocation: str = ""
    """Number of the Slurm job that the host is a part of; empty: it is nobody else's."""
    leaves_unix_s: float = 0.0
    """When that ends, by the wall clock; 0: the host stays."""
    leave_grace_s: float = 0.0
    """So long before that its jobs are asked to save and leave."""
    copies: str = ""
    """Where it keeps jobs' copies of their snapshots, a folder per job; empty: its agent keeps none."""
    container_note: str = ""
    """Why a program of its for containers gives them no GPUs."""

    def __post_init__(self) -> None:
        seen = {d.device_id for d in self.devices}
        if len(seen) != len(self.devices):
            raise ValueError(f"{self.host_id}: a device is listed twice")
        if any(d.host_id != self.host_id for d in self.devices):
            raise ValueError(f"{self.host_id}: a device names another host")
        if any(not d.device_id.startswith(f"{self.host_id}/") for d in self.devices):
            raise ValueError(f"{self.host_id}: a device is not named after its host")
        if self.leaves_unix_s < 0 or self.leave_grace_s < 0:
            raise ValueError(f"{self.host_id}: an end of its allocation in negative seconds")
        if self.port_count < 1 or not 1024 <= self.port_first <= 65535:
            raise ValueError(f"{self.host_id}: bad port range {self.port_first}+{self.port_count}")


class HostState(StrEnum):
    """Whether a host gets new work. Running work is never touched by a change of state alone."""

    OK = "ok"
    SILENT = "silent"
    """No heartbeat for a while; its jobs keep their devices until the lease ends."""
    DRAINED = "drained"
    SUSPECT = "suspect"
    """Several infrastructure failures in a row, of more than one user's jobs or as the host itself says; one
    attempt at a time until one succeeds."""
    LOST = "lost"


class Host(msgspec.Struct, kw_only=True):
    """The ledger's record of a host. Only the ledger writes it."""

    report: HostReport
    silent: bool = False
    drained_by: str = ""
    lost: bool = False
    failures_in_row: int = 0
    failed_users: tuple[str, ...] = ()
    """Whose jobs these were; more than one counts as evidence, however many more there are."""
    failed_itself: bool = False
    """The host itself said that it caused one of them."""
    joined_s: float = 0.0
    reason: Reason | None = None
    clears_at_s: float | None = None
    """When its jobs are asked to save and leave, because it goes away; None: it stays."""
    left_s: float = inf
    """Seconds until then, as of the present event."""

    @property
    def host_id(self) -> HostId:
        return self.report.host_id

    @property
    def checkpoint_domain(self) -> str:
        return self.report.checkpoint_domain or self.report.host_id

    @property
    def state(self) -> HostState:
        if self.lost:
            return HostState.LOST
        if self.silent:
            return HostState.SILENT
        if self.drained_by:
            return HostState.DRAINED
        return HostState.SUSPECT if self.is_suspect else HostState.OK

    @property
    def is_suspect(self) -> bool:
        """Whether its failures make it suspect; those of one user's jobs alone do not, since any user can
        write jobs that fail."""
        if self.failures_in_row < SUSPECT_AFTER:
            return False
        return self.failed_itself or len(self.failed_users) > 1

    @property
    def takes_work(self) -> bool:
        """`state is HostState.OK`, quickly."""
        if self.lost or self.silent or self.drained_by:
            return False
        return self.failures_in_row < SUSPECT_AFTER or not self.is_suspect

    def begin_probation(self) -> None:
        """A suspect host takes work again; one more failure makes it suspect."""
        self.failures_in_row = SUSPECT_AFTER - 1


SUSPECT_AFTER: Final = 3
"""Failures in a row."""


class HostRoom(NamedTuple):
    """The room on one host."""

    cpus: int
    memory_mib: int | None
    """None: not known, and not limited."""

    def holds(self, cpus: int, memory_mib: int) -> bool:
        """Whether a gang that asks for so much on each of its hosts finds it here."""
        return cpus <= self.cpus and (self.memory_mib is None or memory_mib <= self.memory_mib)


def asks_hosts(spec: JobSpec) -> bool:
    """Whether it asks for any cores or main memory of its hosts."""
    return spec.cpus > 0 or spec.host_memory_mib > 0


def room_left(report: HostReport, jobs: Iterable[Job]) -> HostRoom:
    """What the jobs leave of a host's cores and memory; below 0 if it has less than when they started."""
    cpus, memory_mib = report.cpus, report.memory_mib
    for job in jobs:
        cpus -= job.spec.cpus
        memory_mib -= job.spec.host_memory_mib
    return HostRoom(cpus, memory_mib if report.memory_mib else None)
