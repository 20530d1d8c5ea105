"""What an agent remembers of attempts, of devices, and of jobs that must not start."""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.agent.ipc.channel import StopNow
from cotenant.controller import domain, performance
from cotenant.controller.domain import events as ev

BY_XID: Final = 2
"""`Fault.weight`."""

AttemptKey = tuple[domain.JobId, domain.AttemptNo]
JobKey = tuple[domain.JobId, str]
"""A job's number and the token of the epoch in which it arrived: a number alone may mean two jobs, of two
histories. Two attempts of one number are never here at once; the agent refuses the second start."""


class StopAsked(msgspec.Struct, frozen=True, kw_only=True):
    save: bool
    deadline_s: float
    reason: str
    interrupt: bool = False
    finish: bool = False

    def order(self, left_s: float) -> StopNow:
        """The order to the supervisor, when so much of the time is left."""
        return StopNow(
            save=self.save,
            deadline_s=left_s,
            reason=self.reason,
            interrupt=self.interrupt,
            finish=self.finish,
        )


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fatal fault of a device that struck an attempt."""

    role: domain.GpuFaultRole
    why: str
    """The Xid with its name, or what else was seen."""
    where: str
    """The devices."""
    beside: tuple[domain.JobId, ...] = ()
    """Jobs that shared them then."""
    weight: int = 0
    """What `why` rests on: 2 an Xid, 1 the state of its MPS server, 0 the words of a process that died."""

    @property
    def is_by_xid(self) -> bool:
        return self.weight == BY_XID


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt on this host: what it holds, what was asked of it, what the controller was told."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    command_id: domain.CommandId
    """The last command about it."""
    epoch: str = ""
    """Token of the epoch in which it was launched. Here and below, empty: unknown."""
    job_epoch: str = ""
    devices: tuple[domain.DeviceId, ...] = ()
    has_folder: bool = True
    """False: fenced before it ever started here."""
    uses_library: bool = False
    """It resumes from a checkpoint, so its own library will say when the first step is done."""
    memory_cap_mib: int | None = None
    """Of each device, from its start on; None: it started without a limit."""
    fraction: float = 1.0
    """Below 1: of its one device it has this part."""
    bound: performance.ShareBound | None = None
    """What sharing may cost it; None: anything."""
    can_wait: bool = False
    """Its ranks look at their pace (`pacing.py`)."""
    cores: tuple[int, ...] = ()
    """Of a CPU slot: those that are its part; empty: all of its slots."""
    stop: StopAsked | None = None
    save: bool = False
    """A save was asked for and its supervisor has not been told yet."""
    allowed_s: float | None = None
    """Its time limit from its start on, where that was changed later; None: its order says it."""
    started: bool = False
    capabilities: domain.Capabilities | None = None
    """What the agent has reported of these, and whether the job is resumable; a job may find out later."""
    resumable: bool = False
    first_step: bool = False
    first_step_assumed: bool = False
    """It said nothing for a while, and the agent reported that it runs."""
    durable_step: int = -1
    """The newest checkpoint reported."""
    profiled: bool = False
    """Its supervisor is told when another attempt shares its devices."""
    profile_no: int = 0
    """The newest profile reported."""
    words_told: domain.JobWords = domain.JobWords()
    """As reported."""
    troubles: tuple[str, ...] = ()
    """What was reported to have failed without ending it."""
    cuda_processes: int = 1
    """With how many processes a worker was seen to use its GPU, as a client of MPS."""
    mps: bool = False
    """It started as a client of MPS daemons, and stays one for its life, whatever happens to those."""
    fault: Fault | None = None
    """It is told to end for this, or has ended by it."""
    ended: ev.AttemptEnded | None = None
    settled_age_s: float | None = None
    """When the controller confirmed the end; None = not yet."""

    @property
    def key(self) -> AttemptKey:
        return (self.job_id, self.attempt)

    @property
    def job(self) -> JobKey:
        return (self.job_id, self.job_epoch)


class StepBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A co-client that has to prove itself, and the last step that it had made before."""

    key: AttemptKey
    step: int


class DeviceQuarantine(msgspec.Struct, frozen=True, kw_only=True):
    """About one device, see `teardown.py`."""

    after: domain.JobId
    """The job whose client was killed."""
    waits: tuple[StepBefore, ...]


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """No attempt of the job up to this one may be started here (again)."""

    attempt: domain.AttemptNo
    command_id: domain.CommandId
    epoch: str = ""
