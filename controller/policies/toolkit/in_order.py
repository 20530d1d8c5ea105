"""Waiting jobs in a given order on free devices, and who may start ahead of the first that does not fit.

Rule: with `easy` backfilling nothing delays the job that holds the head. Its reservation is where and when it
would start if every job ended as predicted and nobody else started: a job behind it starts only on devices
that are not among these, or if it ends before. Source: Lifka, "The ANL/IBM SP Scheduling System" (JSSPP '95):
one reservation, for the head alone.

A job that has outlived its estimate counts as ending now: no job starts because of a guess that was wrong
already. Where the head's start cannot be foreseen, because a job that it needs has an unknown end,
nobody passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from cotenant.controller.domain import DeviceId, Job, Reason, because
from cotenant.controller.planning import Plan, SchedulingClass, is_possible
from cotenant.controller.policies.base import PolicyParameters
from cotenant.controller.policies.toolkit.candidates import Candidates
from cotenant.controller.policies.toolkit.late import KeptForLate
from cotenant.controller.policies.toolkit.reservations import end_if_started, reserve


def place_in_order(
    plan: Plan, order: str, strict: bool, passed_over: Callable[[Job], bool] | None = None
) -> Job | None:
    """Give free devices to queued jobs in order; those that are `passed_over` get none.

    Returns the job that all others must wait for, if there is one: the first that does not fit under a strict
    order while devices are left. Devices are kept for a late job that does not fit (`late.py`): if smaller
    ones went on passing it by, it would starve. A job that is not possible now is never waited for.
    """
    view, free, kept = plan.view, plan.free_everywhere, KeptForLate(plan, preempts=False)
    candidates = Candidates(view)
    while (job := candidates.next()) is not None:
        is_placed = plan.actions and plan.is_placed(job.spec.job_id)
        if is_placed or (passed_over is not None and passed_over(job)):
            candidates.again(job)
            continue
        devices = kept.find_free(job) if job.spec.gpus_min <= free else None
        if devices is not None:
            plan.place(job, devices, because("free-devices-in-order", order, len(devices)))
            free -= len(devices)
            if not free and not job.aged:  # And those that have aged stand before it.
                return None
            candidates.again(job)
        elif strict:
            if is_possible(view, job):
                return job
        elif job.aged:
            if is_possible(view, job):
                kept.keep(job)
        elif not free:
            return None
    return None


Backfill = Literal["none", "easy", "any"]
"""Who may start ahead of a job that does not fit: nobody; whoever does not delay it; whoever fits."""
WhyPlaced = Callable[[Job, tuple[DeviceId, ...]], Reason]


def place_ordered(
    plan: Plan, jobs: Iterable[Job], order: str, backfill: Backfill, why: WhyPlaced | None = None
) -> None:
    """Free devices to these jobs in turn, as far as those that do not fit let others pass.

    If nothing was found for a job, no other of its scheduling class is tried. Nobody waits for a job that is
    not possible now, and nobody passes one that has aged, but as `easy` allows.
    """
    view, free = plan.view, plan.free_everywhere
    unfit: set[SchedulingClass] = set()
    waiting = iter(jobs)
    for job in waiting:
        if plan.actions and plan.is_placed(job.spec.job_id):
            continue
        scheduling_class = view.queue.class_of(job)
        devices = None if scheduling_class in unfit else plan.find_free(job)
        if devices is not None:
            reason = why(job, devices) if why else because("free-devices-in-order", order, len(devices))
            plan.place(job, devices, reason)
            free -= len(devices)
            if not free:
                return
            continue
        unfit.add(scheduling_class)
        if (backfill != "any" or job.aged) and is_possible(view, job):
            if backfill == "easy":
                _fill_behind(plan, job, waiting, order)
            return


def _fill_behind(plan: Plan, head: Job, waiting: Iterator[Job], order: str) -> None:
    """Start those behind the head that do not delay it."""
    reservation = reserve(plan, head)
    if reservation is None:
        return
    view, now_s = plan.view, plan.view.now_s
    in_s = reservation.start_s - now_s
    apart = plan.fork()  # What is free there the head does not need.
    apart.suppose_placed(head, reservation.devices)
    unfit: dict[bool, set[SchedulingClass]] = {True: set(), False: set()}
    for job in waiting:
        ends = end_if_started(job, now_s) <= reservation.start_s
        scheduling_class = view.queue.class_of(job)
        devices: tuple[DeviceId, ...] | None = None
        for where, is_apart in ((apart, True), (plan, False)) if ends else ((apart, True),):
            if devices is None and scheduling_class not in unfit[is_apart]:
                devices = where.find_free(job)
                if devices is None:
                    unfit[is_apart].add(scheduling_class)
        if devices is None:
            continue
        reserved = not set(devices).isdisjoint(reservation.devices)
        why = (order, head.job_id, in_s)
        reason = because("backfilled-before", *why) if reserved else because("backfilled-apart", *why)
        plan.place(job, devices, reason)
        apart.suppose_placed(job, devices)
        if not plan.any_free():
            return


class OrderParameters(PolicyParameters, frozen=True, kw_only=True):
    """Named options of an order."""

    backfill: Backfill = "none"
    """Who may start ahead of a job that does not fit. `none`: nobody. `easy`: whoever does not delay the
    first such job, by the expected times. `any`: whoever fits."""


class PassingParameters(OrderParameters, frozen=True, kw_only=True):
    """The options of an order that lets whoever fits pass."""

    backfill: Backfill = "any"
