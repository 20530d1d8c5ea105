"""The order in which one of our policies would have Slurm's waiting jobs, and why.

Rule: the policy is asked as ever, about a view of the same ledger as in the engine: Slurm's nodes are its
hosts, a node's GPUs (where the cluster has none: processors) its devices, what runs keeps them from being
free. Only policies whose decision is an order are asked: nothing can be shared or preempted through a
priority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Ledger, SavedLedger
from cotenant.controller.planning import View
from cotenant.controller.policies.base import Policy, waiting_in_order
from cotenant.controller.slurm.steer.core.estimates import Estimate
from cotenant.controller.slurm.steer.core.queue import QueueJob, SlurmQueue

ORDERS: Final = ("fifo", "sjf", "ssf", "srtf", "srsf", "f1", "wfp3", "unicep", "scorer", "rltune")
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


def order_queue(
    policy: Policy, queue: SlurmQueue, waiting: Sequence[QueueJob], estimates: Mapping[int, Estimate]
) -> SteeredOrder:
    view = as_view(policy, queue, waiting, estimates)
    order = list(waiting_in_order(policy, view, ev.AlarmRang()))
    by_id = {job.job_id: job for job in waiting}
    placed = []
    for rank, each in enumerate(order, 1):
        job = by_id[int(each.job_id)]
        placed.append(Placed(job=job, rank=rank, estimate=estimates[job.job_id], size=queue.size(job)))
    return SteeredOrder(placed=tuple(placed), tell=_teller(policy, view, order))


def _teller(policy: Policy, view: View, order: Sequence[domain.Job]) -> Callable[[int], str]:
    """The reason of a place, where the policy has one beyond its name."""
    if not hasattr(policy, "explain_order"):
        return lambda rank: ""
    told = policy.explain_order(view, list(view.queue.jobs_in_order()), order)

    def tell(rank: int) -> str:
        reason: domain.Reason | None = told(order[rank - 1], rank)
        return "" if reason is None else str(reason)

    return tell


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


def _job(queue: SlurmQueue, job: QueueJob, number: int, estimate: Estimate) -> domain.Job:
    size, expected_s = queue.size(job), estimate.seconds
    if expected_s is not None:
        expected_s = max(expected_s, LEAST_S)
    spec = domain.JobSpec(
        job_id=domain.JobId(str(job.job_id)),
        name=job.name,
        user=job.user,
        gpus_min=size,
        gpus_max=size,
        # A job that would take several partitions may run anywhere, as far as an order is concerned.
        features=() if "," in job.partition else (job.partition,),
        expected_s=expected_s,
        time_limit_s=job.limit_s or None,
        launch=domain.Launch(argv=(job.name,)),
    )
    since_s = min(job.submitted_s, queue.now_s)
    return domain.Job(
        spec=spec,
        number=number,
        submitted_s=since_s,
        phase_since_s=since_s,
        reason=domain.because("submitted", job.user),
        estimate=domain.JobEstimate(
            remaining_s=expected_s,
            remaining_at_s=since_s,
            source="none" if expected_s is None else "user",
        ),
    )


def _hosts(queue: SlurmQueue) -> list[domain.Host]:
    reports = (
        _report(node.name, "cuda", node.gpus, node.free_gpus, node.partitions)
        if queue.counts_gpus
        else _report(node.name, "cpu", node.cpus, node.free_cpus, node.partitions)
        for node in queue.nodes
    )
    return [domain.Host(report=report) for report in reports]


@lru_cache(maxsize=NODES_KEPT)
def _report(
    name: str, kind: Literal["cuda", "cpu"], count: int, free: int, partitions: tuple[str, ...]
) -> domain.HostReport:
    """Most nodes are as they were a round ago, and one may have hundreds of processors."""
    host_id = domain.HostId(name)
    devices = tuple(
        domain.Device(
            device_id=domain.DeviceId(f"{name}/{number}"),
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
    return domain.HostReport(host_id=host_id, devices=devices, features=partitions)
