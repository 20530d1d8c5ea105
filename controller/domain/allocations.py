"""Hosts that are asked of somebody else's queue: what is asked for, and what became of each request.

Rule: one allocation is one Slurm job and one host, under a name of its queue's (`slurm-1`, `slurm-2`, ...)
that is free again when it is over; so there are never more than `max_hosts` of them, and their keys stay few.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from cotenant.controller.domain.cluster import DeviceKind
from cotenant.controller.domain.ids import HostId

HOSTS_MAX: Final = 1_000
"""Log lines of one queue."""
QUEUE_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")


class HostShape(msgspec.Struct, frozen=True, kw_only=True):
    """What one host has, as it was declared."""

    devices: int
    kind: DeviceKind = "cuda"
    """`cpu`: slots, which stand in for GPUs."""
    type: str = ""
    """Empty: as the first host says."""
    cpus: int = 0
    """0: as many as Slurm gives."""
    memory_mib: int = 0

    def __post_init__(self) -> None:
        if self.devices < 1 or self.cpus < 0 or self.memory_mib < 0:
            raise ValueError(f"a host needs a device at least, and no negative numbers, got {self}")


class SeenShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the first host of a queue turned out to have."""

    devices: int
    type: str
    memory_mib: int
    """Plannable memory of its smallest device."""
    features: tuple[str, ...] = ()
    domain: str = ""
    """Where its jobs' checkpoints lie."""


class AllocationTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What may be asked of Slurm, as a person has set it."""

    name: str
    options: tuple[str, ...] = ()
    """Of `sbatch`, as they were given."""
    shape: HostShape
    max_hosts: int
    backlog: int = 1
    """Requests that may wait in Slurm's queue at once."""
    idle_s: float = 300.0
    """A host without jobs is given back after this."""
    time_limit_s: float
    grace_s: float = 120.0
    """How long before the limit its jobs save and leave."""
    before: str = ""
    """Shell that prepares a host for the agent, such as `module load python`."""
    folder: str
    """On a file system that all hosts see: endpoint, keys, logs and checkpoints."""

    def __post_init__(self) -> None:
        if not QUEUE_NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r}: a queue's name has up to 31 of a to z, 0 to 9 and '-'")
        if not (1 <= self.max_hosts <= HOSTS_MAX and self.backlog >= 1):
            raise ValueError(f"{self.name}: max-hosts must be 1 to {HOSTS_MAX}, backlog 1 at least")
        if not (self.idle_s > 0 and 0 < self.grace_s < self.time_limit_s):
            raise ValueError(
                f"{self.name}: the grace ({self.grace_s:g} s) must be shorter than the time limit "
                f"({self.time_limit_s:g} s), and idle must be above 0"
            )

    def host(self, slot: int) -> HostId:
        return HostId(f"{self.name}-{slot}")


class AllocationQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Terms, and what has come of them so far."""

    terms: AllocationTerms
    python: str
    """The interpreter that starts agents."""
    added_by: str = ""
    paused: str = ""
    """Why nothing is asked for at present; empty: it may be."""
    is_checked: bool = False
    """Slurm has a partition with nodes of this shape."""
    is_removed: bool = False
    """Its hosts are being given back; the queue ends with the last one."""
    seen: SeenShape | None = None
    """None: no host has joined yet."""
    failures: int = 0
    """Requests in a row that brought no host."""
    failure: str = ""
    """Why the last of them failed."""
    retry_at_s: float = 0.0
    next_number: int = 1
    """Of its next allocation."""

    @property
    def name(self) -> str:
        return self.terms.name

    def host(self, slot: int) -> HostId:
        return self.terms.host(slot)


AllocationState = Literal["submitting", "pending", "starting", "working", "ending", "over"]

ALLOCATION_LIFECYCLE: Final[dict[AllocationState, frozenset[AllocationState]]] = {
    "submitting": frozenset(("pending", "over")),
    "pending": frozenset(("starting", "working", "ending", "over")),
    "starting": frozenset(("working", "ending", "over")),
    "working": frozenset(("ending", "over")),
    "ending": frozenset(("over",)),
    "over": frozenset(),
}
"""submitting: `sbatch` is called, or was when a controller ended. pending: it waits in Slurm. starting: it
runs, and its host has not joined. ending: its jobs leave, or Slurm is asked to end it. over: Slurm no longer
has it."""


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """A request to Slurm, and what it brought."""

    name: str
    """Name of the Slurm job: by it a controller that has started anew finds its requests."""
    queue: str
    host_id: HostId
    state: AllocationState = "submitting"
    since_s: float
    """In this state."""
    asked_s: float
    slurm_id: str = ""
    node: str = ""
    why: str
    """What led to this state, or why it still waits."""

    def move(self, state: AllocationState, now_s: float, why: str, **known: str) -> Allocation:
        """Moves the allocation into another state. Raises ValueError: that state does not follow."""
        if state not in ALLOCATION_LIFECYCLE[self.state]:
            raise ValueError(f"allocation {self.name}: {self.state} cannot become {state}")
        return msgspec.structs.replace(self, state=state, since_s=now_s, why=why, **known)


class AllocationNote(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `alloc log`."""

    at_s: float
    queue: str
    text: str


NOTES_MAX: Final = 500


class Allocations(msgspec.Struct, kw_only=True):
    """The allocations, all of them; what is over is remembered as lines."""

    queues: dict[str, AllocationQueue] = {}
    open: dict[str, Allocation] = {}
    """By name."""
    notes: list[AllocationNote] = []

    def allocations_of(self, queue: str) -> list[Allocation]:
        return [each for each in self.open.values() if each.queue == queue]

    def queue_changed(self, name: str, queue: AllocationQueue | None, now_s: float, why: str) -> None:
        if queue is None:
            self.queues.pop(name, None)
        else:
            self.queues[name] = queue
        if why:
            self._note(now_s, name, why)

    def allocation_changed(self, allocation: Allocation, now_s: float) -> None:
        before = self.open.get(allocation.name)
        if allocation.state == "over":
            self.open.pop(allocation.name, None)
        else:
            self.open[allocation.name] = allocation
        if before is None or before.state != allocation.state:
            number = f" (Slurm job {allocation.slurm_id})" if allocation.slurm_id else ""
            text = f"{allocation.host_id}{number}: {allocation.state}: {allocation.why}"
            self._note(now_s, allocation.queue, text)

    def _note(self, now_s: float, queue: str, text: str) -> None:
        self.notes = [*self.notes[-NOTES_MAX + 1 :], AllocationNote(at_s=now_s, queue=queue, text=text)]
