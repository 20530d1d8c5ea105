"""What a learned order sees of the waiting jobs and of the cluster: RLTune's Table 3, in fixed columns.

Rule: a column means the same in every state (the paper selects 8 of 17 per state, which would change what a
weight is about). All values are near 1 in size. The same code makes them in training, simulated and live.

CFF = 1 - sum(f^2)/(sum f)^2 over hosts with f free GPUs (equation 3 as printed is never positive). Future
availability = free - own demand - demand of the queued jobs. Both are nearly the same for all waiting
jobs, so an order cannot use them: they are the critic's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.domain import Job, Plan, SchedulingClass
from cotenant.controller.policies.classic import UNKNOWN_S
from cotenant.controller.policies.learned.model import Table

ACTOR: Final = (
    "log_time", "log_gpus", "log_wait", "log_size", "urgency", "demand_supply", "can_start", "ways",
)  # fmt: skip
"""log10 of expected seconds / 4; log2 of GPUs / 3; log10 of 1 + seconds waited / 4; log10 of time x GPUs / 5;
wait / (wait + time); GPUs / (GPUs + free ones); whether it fits now; share of hosts on which it fits now."""
CRITIC: Final = ("log_time", "log_gpus", "log_wait", "future", "fragmentation")


class Observation(NamedTuple):
    """Shape (jobs, columns)."""

    actor: Table
    critic: Table


def observation(plan: Plan, jobs: Sequence[Job], *, critic: bool = False) -> Observation:
    """The columns of these waiting jobs; the critic's only where asked for."""
    view = plan.view
    now_s = view.now_s
    told = [job.remaining_s for job in jobs]
    time_s = np.maximum([UNKNOWN_S if each is None else each for each in told], 1.0)
    wait_s = np.array([job.queued_s + now_s - job.phase_since_s for job in jobs], dtype=np.float64)
    classes = [view.scheduling_class(job) for job in jobs]
    known: dict[SchedulingClass, tuple[float, float, float, float]] = {}
    for each in classes:
        if each not in known:
            known[each] = _of_class(plan, each)
    gpus, free, fits, ways = np.array([known[each] for each in classes]).T
    log_time, log_gpus, log_wait = np.log10(time_s), np.log2(gpus), np.log10(1.0 + wait_s)
    columns = (
        log_time / 4.0,
        log_gpus / 3.0,
        log_wait / 4.0,
        (log_time + 0.30103 * log_gpus) / 5.0,
        wait_s / (wait_s + time_s),
        gpus / (gpus + free),
        fits,
        ways,
    )
    actor = np.stack(columns, axis=1)
    if not critic:
        return Observation(actor, actor[:, :0])
    future = (free - gpus - gpus.sum()) / max(len(view.devices), 1)
    cff = np.full(len(jobs), _fragmentation(plan))
    return Observation(actor, np.stack((*columns[:3], np.clip(future, -4.0, 1.0), cff), axis=1))


def _of_class(plan: Plan, scheduling_class: SchedulingClass) -> tuple[float, float, float, float]:
    """Of a class: GPUs, free ones of its type, whether it fits by number, share of hosts on which it fits."""
    gpus, free = scheduling_class.gpus, plan.view.free
    types = (scheduling_class.gpu_type,) if scheduling_class.gpu_type else free.types
    total = max((plan.free_total(type) for type in types), default=0)
    ways = sum(
        sum(1 for _ in free.with_free(type, count))
        for type in types
        for count in range(gpus, free.most(type) + 1)
    )
    return float(gpus), float(total), float(ways > 0 or total >= gpus), ways / max(len(plan.view.hosts), 1)


def _fragmentation(plan: Plan) -> float:
    free = np.array([plan.free_on(host_id) for host_id in plan.view.hosts], dtype=float)
    total = float(free.sum())
    return 1.0 - float((free**2).sum()) / total**2 if total else 0.0
