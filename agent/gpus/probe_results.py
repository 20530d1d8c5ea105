"""What the watcher says about the GPUs, one JSON line each.

Rule: facts only, by UUID. What NVML did not say is None, never 0; what a fact means for a device is decided
in `causes.py`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.controller.domain import AttemptNo, JobId

OwnerKind = Literal["attempt", "mps", "agent", "foreign", "hidden"]
"""attempt: of a job that this agent started, now or before. mps: a server of our own MPS daemons. agent: a
child of the agent itself, which tries CUDA. hidden: no process of this number can be seen from here (another
PID namespace, or it has just ended)."""


class ProcessOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a process is."""

    kind: OwnerKind
    user: str = ""
    command: str = ""
    since: str = ""
    """When the process began, for a person; empty: not known."""
    job_id: str = ""
    attempt: int = 0

    @property
    def key(self) -> AttemptKey:
        assert self.kind == "attempt", self
        return JobId(self.job_id), AttemptNo(self.attempt)


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has something open on a GPU."""

    pid: int
    used_mib: int | None
    """None: NVML does not say."""
    computes: bool = True
    """False: it only draws."""
    state: str = ""
    """The letter in /proc/PID/stat; empty: there is no such process here."""
    owner: ProcessOwner


class WatchLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="w"):
    """Base of all lines."""


class Began(WatchLine, frozen=True, kw_only=True, tag="began"):
    """Says that NVML answers; from now on events are heard."""

    uuid: str
    events: bool
    """Xid events come from NVML."""
    kernel_log: bool
    """And from the kernel's log, which names the process as well."""


class ProbeFailed(WatchLine, frozen=True, kw_only=True, tag="failed"):
    """NVML as a whole does not work; the watcher ends."""

    problem: str


class ProbeResult(WatchLine, frozen=True, kw_only=True, tag="look"):
    """The state of one GPU at one moment. The errors that the watcher could know of before it have been said
    before it."""

    uuid: str
    at_s: float = 0.0
    """When it was begun: seconds since the boot."""
    record: int | None = None
    """The newest record of the kernel's log that had been read by then."""
    code: int = 0
    """NVML's answer; 0: all is well, 15: lost, 16: it wants a reset."""
    problem: str = ""
    used_mib: int = 0
    """All of it: processes, driver, and what has no visible owner."""
    processes: tuple[Process, ...] = ()
    lists_computing: bool = True
    """Whether the driver has a list of those who compute there."""
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    remap_pending: bool = False
    """A row of its memory, or a page, is taken out of use at the next reset."""
    remap_failed: bool = False
    """There is no spare row any more."""
    energy_mj: int | None = None
    """Millijoules since the driver was loaded: it only falls when the GPU begins anew."""


class XidSeen(WatchLine, frozen=True, kw_only=True, tag="xid"):
    """The driver reported an error."""

    uuid: str
    xid: int
    pid: int | None = None
    """The process that the kernel's log names; of an MPS client it may be the server's."""
    recovery: int | None = None
    """Of Xid 154: what the driver wants done, as NVML numbers it; None: it was not said."""
    owner: ProcessOwner | None = None
    """Whose that is or was, if this watcher has ever seen it."""
    record: int | None = None
    """Its number in the kernel's log; None: it came from NVML."""
    is_late: bool = False
    """It was there before its watcher began, and was never reported."""


AnyWatchLine = Began | ProbeFailed | ProbeResult | XidSeen
