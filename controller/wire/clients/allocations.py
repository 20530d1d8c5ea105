"""Questions about hosts that are asked of Slurm, and their answers."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import field

from cotenant.controller.domain import AllocationState, AllocationTerms, HostId
from cotenant.controller.wire.clients.base import Done, Question, Reply
from cotenant.controller.wire.views import JsonView, Utc


class AddAllocations(Question[Done], frozen=True, kw_only=True, tag="add-allocations"):
    """Ask Slurm for hosts from now on, as jobs need them."""

    terms: AllocationTerms


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
    """One Slurm job."""

    host: HostId
    state: AllocationState
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
    terms: AllocationTerms
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
