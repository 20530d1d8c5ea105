"""What `squeue` and the hosts that have joined say of allocations: pure.

Rule: what Slurm does not list is over, and only a whole answer counts: without one nothing has changed. A
Slurm job with a name of ours that the journal does not know was asked for in a history that is lost; it is
ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.controller.domain import Allocation, Host, HostId
from cotenant.controller.executors.slurm.programs import SlurmRow

SUBMITTED_WITHIN_S: Final = 120.0
"""From asking `sbatch` until its job can be seen."""
JOINED_WITHIN_S: Final = 600.0
"""From the start of a Slurm job until its host has joined."""


class AllocationNews(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed of one allocation."""

    allocation: Allocation
    joined: bool = False
    """Its host is here, for the first time."""
    failed: bool = False
    """It has ended, or is to, without having brought a host."""
    lost: HostId | None = None
    """This host is gone with it."""
    cancel: bool = False


def follow(
    allocations: Iterable[Allocation],
    rows: Sequence[SlurmRow],
    hosts: Mapping[HostId, Host],
    now_s: float,
) -> list[AllocationNews]:
    by_id, by_name = {row.slurm_id: row for row in rows}, {row.name: row for row in rows}
    found = []
    for each in allocations:
        row = by_id.get(each.slurm_id) if each.slurm_id else by_name.get(each.name)
        host = hosts.get(each.host_id)
        is_here = host is not None and bool(each.slurm_id) and host.report.allocation == each.slurm_id
        if row is None:
            news = _gone(each, is_here and host is not None and not host.lost, now_s)
        else:
            news = _there(each, row, is_here, now_s)
        if news is not None:
            found.append(news)
    return found


def _gone(each: Allocation, is_here: bool, now_s: float) -> AllocationNews | None:
    if each.state == "submitting":
        if now_s - each.since_s < SUBMITTED_WITHIN_S:
            return None
        return AllocationNews(allocation=each.move("over", now_s, "sbatch has brought no job"), failed=True)
    why = {
        "pending": "Slurm dropped it before it ran, or somebody cancelled it",
        "starting": "its Slurm job ended before its host had joined; its log says why",
        "working": "its Slurm job has ended",
    }.get(each.state, each.why)
    return AllocationNews(
        allocation=each.move("over", now_s, why),
        failed=each.state in ("pending", "starting"),
        lost=each.host_id if is_here else None,
    )


def _there(each: Allocation, row: SlurmRow, is_here: bool, now_s: float) -> AllocationNews | None:
    if each.state == "submitting":
        why = _waits(row) if row.waits else "found in Slurm after a start of the controller"
        return AllocationNews(allocation=each.move("pending", now_s, why, slurm_id=row.slurm_id))
    if each.state in ("pending", "starting") and is_here:
        why = f"its host has joined from {row.node}"
        return AllocationNews(allocation=each.move("working", now_s, why, node=row.node), joined=True)
    if each.state == "pending":
        if row.waits:
            why = _waits(row)
            changed = msgspec.structs.replace(each, why=why)
            return AllocationNews(allocation=changed) if why != each.why else None
        why = f"it runs on {row.node}, and its host has not joined yet"
        return AllocationNews(allocation=each.move("starting", now_s, why, node=row.node))
    if each.state == "starting" and now_s - each.since_s >= JOINED_WITHIN_S:
        why = f"its host did not join within {JOINED_WITHIN_S:.0f} s; its log says why"
        return AllocationNews(allocation=each.move("ending", now_s, why), failed=True, cancel=True)
    return None


def _waits(row: SlurmRow) -> str:
    return f"Slurm lets it wait ({row.reason})" if row.reason not in ("", "None") else "Slurm lets it wait"


def orphans(rows: Iterable[SlurmRow], known: Iterable[str], prefix: str) -> list[str]:
    """Slurm jobs with names of ours that the journal does not know."""
    names = set(known)
    return [row.slurm_id for row in rows if row.name.startswith(prefix) and row.name not in names]
