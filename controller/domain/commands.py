"""What the engine tells agents (and the edge) to do. Every one may arrive twice or late."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cotenant.controller.domain.ids import AttemptNo, CommandId, DeviceId, HostId, JobId
from cotenant.controller.domain.job_spec import Launch as LaunchSpec
from cotenant.controller.domain.reasons import Reason
from cotenant.controller.performance import ShareBound


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="command"):
    """Base of all commands; ids rise within one journal and never repeat in one epoch."""

    command_id: CommandId


class GangMember(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a gang on one host; ranks are `first_rank .. first_rank + len(devices) - 1`."""

    host_id: HostId
    devices: tuple[DeviceId, ...]
    first_rank: int


class StartAttempt(Command, frozen=True, kw_only=True, tag="StartAttempt"):
    """Start this host's workers of an attempt."""

    host_id: HostId
    job_id: JobId
    attempt: AttemptNo
    launch: LaunchSpec
    gang: tuple[GangMember, ...]
    master_address: str
    master_port: int
    sub_batch: int | None
    accumulation_steps: int
    memory_cap_mib: int | None
    """Per device, while sharing; None = no cap."""
    host_memory_mib: int
    """What it may use of main memory: asked for, or what its co-tenants leave on CPU slots; 0 = no limit."""
    cpus: int
    resume_step: int
    """Of the newest durable checkpoint that the ledger knows; the job may find a newer one that verifies."""
    checkpoint_every_s: float
    profile_s: float = 0.0
    """T_prof: how long it is profiled in place while it runs alone; 0 = not at all."""
    name: str = ""
    user: str = ""
    job_class: Literal["hp", "spot"] = "hp"
    """Decides the priority of an MPS client."""
    epoch: str = ""
    """Token of the epoch in which it was launched."""
    job_epoch: str = ""
    """Of that in which its job arrived: the job's number and this are its identity, on disk as well."""
    time_left_s: float | None = None
    """To its time limit; only said of Slurm scripts, which read it."""
    step_batch: tuple[int, int] | None = None
    """Rows per worker, and for how many workers, that make up a step of an elastic job wherever it runs."""
    fraction: float = 1.0
    """Of each of its devices; below 1: of its only one."""
    share_bound: ShareBound | None = None
    """What sharing may cost it; None: anything."""


INTERRUPT_S: Final = 30.0
"""Time that a job which was sent Ctrl-C has to end by itself."""


class StopAttempt(Command, frozen=True, kw_only=True, tag="StopAttempt"):
    """End an attempt on this host: after a save at an agreed step if `save`, else at once.

    An agent that does not know the attempt fences it (a late StartAttempt is refused) and answers
    `AttemptEnded(outcome="never-started")`.
    """

    host_id: HostId
    job_id: JobId
    attempt: AttemptNo
    save: bool
    deadline_s: float
    """Time allowed for the save; after it the supervisor ends the processes by itself."""
    reason: Reason
    epoch: str = ""
    job_epoch: str = ""
    interrupt: bool = False
    """Without `save`: its processes get SIGINT, and are ended `deadline_s` later."""
    finish: bool = False
    """With `save`: a loop over steps that is ours ends there, as if all were done, and the script goes on; it
    has until `deadline_s`."""


class SaveAttempt(Command, frozen=True, kw_only=True, tag="SaveAttempt"):
    """Write a checkpoint and go on (sent to the host of rank 0)."""

    host_id: HostId
    job_id: JobId
    attempt: AttemptNo
    job_epoch: str = ""


class LimitAttempt(Command, frozen=True, kw_only=True, tag="LimitAttempt"):
    """The time limit of an attempt that runs is another one. The controller ends it; what a host does before
    that time (the signal of `--signal`) follows. Repeats change nothing."""

    host_id: HostId
    job_id: JobId
    attempt: AttemptNo
    allowed_s: float
    """From its start to the limit, in place of `time_left_s`; infinite: it has none any more."""
    job_epoch: str = ""


class ForgetJob(Command, frozen=True, kw_only=True, tag="ForgetJob"):
    """The job has ended for good: keep its last checkpoint `checkpoint.keep_days`, then clean up."""

    host_id: HostId
    job_id: JobId
    job_epoch: str = ""


class TrustDevices(Command, frozen=True, kw_only=True, tag="TrustDevices"):
    """A person says that all is well with this host: its suspect and draining devices are offered again."""

    host_id: HostId


class ComputeRequest(Command, frozen=True, kw_only=True, tag="Think"):
    """Run a `Compute` request outside the engine."""

    request_id: int
    kind: str
    payload: dict[str, str | int | float | list[float]] = {}
    job_id: JobId | None = None
    """The job of which the engine asked it; None: a policy did."""


AgentCommand = StartAttempt | StopAttempt | SaveAttempt | LimitAttempt | ForgetJob | TrustDevices
AnyCommand = AgentCommand | ComputeRequest
