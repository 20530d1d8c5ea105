"""Free devices to waiting jobs in the policy's order: what most policies do first."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.controller.domain import Job, Plan, because
from cotenant.controller.policies.base import (
    Candidates,
    is_possible,
)  # fmt: skip


def place_in_order(
    plan: Plan, order: str, strict: bool, passed_over: Callable[[Job], bool] | None = None
) -> Job | None:
    """Give free devices to queued jobs in order; those that are `passed_over` get none.

    Returns the job that all others must wait for, if there is one: the first that does not fit and has aged,
    or any that does not fit under a strict order while devices are left. (If smaller ones went on passing it
    by, a wide job that has aged would still starve.) A job that is not possible now is never waited for.
    """
    view, free = plan.view, plan.free_everywhere
    candidates = Candidates(view)
    while (job := candidates.next()) is not None:
        if plan.actions and plan.is_placed(job.spec.job_id):
            candidates.again(job)
            continue
        if passed_over is not None and passed_over(job):
            candidates.again(job)
            continue
        devices = plan.find_free(job) if job.spec.gpus_min <= free else None
        if devices is not None:
            plan.place(job, devices, because("free-devices-in-order", order, len(devices)))
            free -= len(devices)
            if not free and not job.aged:  # And those that have aged stand before it.
                return None
            candidates.again(job)
        elif strict or job.aged:
            if is_possible(view, job):
                return job
        elif not free:
            return None
    return None
