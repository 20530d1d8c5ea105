"""The order in which one of our policies would have Slurm's waiting jobs, and why; and from it the priorities
that are to be set.

Rule: the policy is asked as ever, about a view of the same ledger as in the engine: Slurm's nodes are its
hosts, a node's GPUs (where the cluster has none: processors) its devices, what runs keeps them from being
free. Only policies whose decision is an order are asked: nothing can be shared or preempted through a
priority.

Rule: as few priorities as possible are set. Jobs that already stand right among each other, by priorities
that were set before, keep them; the others get values in the gaps between. Only where a gap is too small all
are numbered anew. Values lie well inside what Slurm takes, none is 0 (which would hold the job), and they are
above those that the multifactor plugin computes: a job that has not been given one yet stands behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from cotenant.controller.domain import (
    Device,
    DeviceId,
    Host,
    HostId,
    HostReport,
    Job,
    JobId,
    JobSpec,
    Launch,
    Reason,
    because,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Ledger, SavedLedger
from cotenant.controller.planning import View
from cotenant.controller.policies.base import Policy
from cotenant.controller.policies.base import waiting as waiting_in_order
from cotenant.controller.slurm.steer.core.estimates import Estimate
from cotenant.controller.slurm.steer.core.queue import QueueJob, SlurmQueue

ORDERS: Final = (
    "fifo",
    "sjf",
    "ssf",
    "srtf",
    "srsf",
    "f1",
    "wfp3",
    "unicep",
    "scorer",
    "rltune",
)
"""Policies whose decision can be carried out by priorities. Of those that preempt, the order alone. Not
qssf and slurm-multifactor: they learn from jobs that they started; estimates are learned here already."""
LEAST_S: Final = 1.0
WHOLE_MIB: Final = 1
NODES_KEPT: Final = 20_000


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting job at its place, 1 being the first."""

    job: QueueJob
    rank: int
    estimate: Estimate
    size: int


class SteeredOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All waiting jobs, the first first."""

    placed: tuple[Placed, ...]
    tell: Callable[[int], str]
    """What the policy itself says of the job at a place; empty: nothing but the numbers. It may look at all
    of them, so it is asked for what is shown only."""


def ordered(
    policy: Policy, queue: SlurmQueue, waiting: Sequence[QueueJob], estimates: Mapping[int, Estimate]
) -> SteeredOrder:
    view = as_view(policy, queue, waiting, estimates)
    jobs, order = in_order(policy, view)
    by_id = {job.job_id: job for job in waiting}
    told = _teller(policy, view, jobs, order)

    def tell(rank: int) -> str:
        reason = told(order[rank - 1], rank)
        return "" if reason is None else str(reason)

    placed = []
    for rank, each in enumerate(order, 1):
        job = by_id[int(each.job_id)]
        placed.append(Placed(job=job, rank=rank, estimate=estimates[job.job_id], size=queue.size(job)))
    return SteeredOrder(placed=tuple(placed), tell=tell)


def in_order(policy: Policy, view: View) -> tuple[list[Job], list[Job]]:
    """All waiting jobs in the order of their keys, and in that of the policy."""
    return list(view.queued()), list(waiting_in_order(policy, view, ev.AlarmRang()))


def _teller(
    policy: Policy, view: View, jobs: Sequence[Job], order: Sequence[Job]
) -> Callable[[Job, int], Reason | None]:
    """The reason of a place, where the policy has one beyond its name."""
    explain_order = getattr(policy, "explain_order", None)
    if explain_order is None:
        return lambda job, rank: None
    found: Callable[[Job, int], Reason | None] = explain_order(view, jobs, order)
    return found


def as_view(
    policy: Policy, queue: SlurmQueue, waiting: Sequence[QueueJob], estimates: Mapping[int, Estimate]
) -> Ledger:
    """A fresh ledger with nothing else in it. Its time is as Slurm's, in seconds since 1970."""
    arrivals = sorted(waiting, key=lambda job: (job.submitted_s, job.job_id))
    saved = SavedLedger(
        jobs=[_job(queue, job, number, estimates[job.job_id]) for number, job in enumerate(arrivals, 1)],
        hosts=_hosts(queue),
        pairs={},
        estimates=Ledger(policy.queue_key).estimates,
    )
    ledger = Ledger(policy.queue_key)
    ledger.load(saved, queue.now_s)
    return ledger


def _job(queue: SlurmQueue, job: QueueJob, number: int, estimate: Estimate) -> Job:
    size, expected_s = queue.size(job), estimate.seconds
    if expected_s is not None:
        expected_s = max(expected_s, LEAST_S)
    spec = JobSpec(
        job_id=JobId(str(job.job_id)),
        name=job.name,
        user=job.user,
        gpus_min=size,
        gpus_max=size,
        features=_partition(job),
        expected_s=expected_s,
        time_limit_s=job.limit_s or None,
        launch=Launch(argv=(job.name,)),
    )
    since_s = min(job.submitted_s, queue.now_s)
    return Job(
        spec=spec,
        number=number,
        submitted_s=since_s,
        phase_since_s=since_s,
        reason=because("submitted", job.user),
        remaining_s=expected_s,
        remaining_at_s=since_s,
        estimate_source="none" if expected_s is None else "user",
    )


def _partition(job: QueueJob) -> tuple[str, ...]:
    """One that would take several may run anywhere, as far as an order is concerned."""
    return () if "," in job.partition else (job.partition,)


def _hosts(queue: SlurmQueue) -> list[Host]:
    if queue.counts_gpus:
        found = [
            _report(node.name, "cuda", node.gpus, node.free_gpus, node.partitions) for node in queue.nodes
        ]
    else:
        found = [
            _report(node.name, "cpu", node.cpus, node.free_cpus, node.partitions) for node in queue.nodes
        ]
    return [Host(report=report) for report in found]


@lru_cache(maxsize=NODES_KEPT)
def _report(
    name: str, kind: Literal["cuda", "cpu"], count: int, free: int, partitions: tuple[str, ...]
) -> HostReport:
    """Most nodes are as they were a round ago, and one may have hundreds of processors."""
    host_id = HostId(name)
    devices = tuple(
        Device(
            device_id=DeviceId(f"{name}/{number}"),
            host_id=host_id,
            kind=kind,
            type=kind,
            local=str(number),
            memory_mib=WHOLE_MIB,
            healthy=number < free,
            note="" if number < free else "in use",
        )
        for number in range(count)
    )
    return HostReport(host_id=host_id, devices=devices, features=partitions)


LOWEST: Final = 1_000_000_000
HIGHEST: Final = 3_900_000_000
GAP: Final = 1_000_000
"""Between neighbours, where there is room: twenty jobs can come in between before all are numbered anew."""


class PriorityChange(msgspec.Struct, frozen=True, kw_only=True):
    job_id: int
    before: int
    priority: int
    rank: int
    """Its place in the order, from 1."""


def changes(order: Sequence[QueueJob], touched: Collection[int], most: int) -> list[PriorityChange]:
    """What to set so that these stand in this order, the first ones first, `most` at a time. `touched`: whose
    priority is ours, and may stay."""
    wanted = _in_gaps(order, touched) or _anew(order)
    found = [
        PriorityChange(job_id=job.job_id, before=job.priority, priority=priority, rank=rank)
        for rank, (job, priority) in enumerate(zip(order, wanted, strict=True), 1)
        if priority != job.priority or job.job_id not in touched
    ]
    return found[:most]


def _in_gaps(order: Sequence[QueueJob], touched: Collection[int]) -> list[int] | None:
    """None: somewhere there is no room."""
    ours = [
        (place, job.priority)
        for place, job in enumerate(order)
        if job.job_id in touched and LOWEST <= job.priority <= HIGHEST
    ]
    kept = _falling(ours)
    if not kept:
        return None
    wanted: list[int] = []
    for (before, above), (place, below) in zip([(-1, None), *kept], [*kept, (len(order), None)], strict=True):
        between = place - before - 1
        if above is None:
            assert below is not None
            above = min(below + GAP * (between + 1), HIGHEST + 1)
        elif below is None:
            below = max(above - GAP * (between + 1), LOWEST - 1)
        if above - below <= between:
            return None
        wanted += [above - (above - below) * nth // (between + 1) for nth in range(1, between + 1)]
        if place < len(order):
            wanted.append(below)
    return wanted


def _anew(order: Sequence[QueueJob]) -> list[int]:
    gap = min(GAP, (HIGHEST - LOWEST) // (len(order) + 1))
    assert gap > 0, f"{len(order)} jobs are more than there are priorities"
    middle = (LOWEST + HIGHEST + gap * len(order)) // 2
    return [middle - gap * place for place in range(1, len(order) + 1)]


def _falling(ours: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of (place, priority) whose priorities fall, others in between left out."""
    ends: list[int] = []  # Of runs of each length, the greatest last priority, negated.
    last: list[int] = []
    before: list[int | None] = []
    for index, (_, priority) in enumerate(ours):
        length = bisect_left(ends, -priority)
        before.append(last[length - 1] if length else None)
        if length == len(ends):
            ends.append(-priority)
            last.append(index)
        else:
            ends[length], last[length] = -priority, index
    found: list[tuple[int, int]] = []
    at = last[-1] if last else None
    while at is not None:
        found.append(ours[at])
        at = before[at]
    return found[::-1]
