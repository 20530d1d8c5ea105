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

from collections.abc import Callable, Iterable
from typing import Literal

from cotenant.controller.domain import DeviceId, Job, Reason, because
from cotenant.controller.planning import Plan, SchedulingClass, is_possible
from cotenant.controller.policies.base import PolicyParameters
from cotenant.controller.policies.toolkit.late import KeptForLate
from cotenant.controller.policies.toolkit.reservations import end_if_started, reserve
from cotenant.controller.policies.toolkit.walk import Candidates, Each, Listed, Then, WhyPlaced, walk


def place_in_order(
    plan: Plan, order: str, strict: bool, passed_over: Callable[[Job], bool] | None = None
) -> Job | None:
    """Give free devices to queued jobs in order; those that are `passed_over` get none.

    Returns the job that all others must wait for, if there is one: the first that does not fit under a strict
    order while devices are left. Devices are kept for a late job that does not fit (`late.py`): if smaller
    ones went on passing it by, it would starve. A job that is not possible now is never waited for.
    """
    view, kept = plan.view, KeptForLate(plan, preempts=False)

    def otherwise(job: Job) -> Then:
        if strict:
            return Then.STOP if is_possible(view, job) else Then.PASS
        if job.aged and is_possible(view, job):
            kept.keep(job)
        return Then.PASS if job.aged or plan.any_free() else Then.STOP

    stopped_at = walk(
        plan,
        Candidates(view),
        order,
        otherwise,
        find=kept.find_free,
        passed_over=passed_over,
        until_full=True,
    )
    return stopped_at if strict else None


Backfill = Literal["none", "easy", "any"]
"""Who may start ahead of a job that does not fit: nobody; whoever does not delay it; whoever fits."""


def place_ordered(
    plan: Plan, jobs: Iterable[Job], order: str, backfill: Backfill, why: WhyPlaced | None = None
) -> None:
    """Free devices to these jobs in turn, as far as those that do not fit let others pass. Nobody waits for a
    job that is not possible now, and nobody passes one that has aged, but as `easy` allows."""
    view, left = plan.view, iter(jobs)

    def otherwise(job: Job) -> Then:
        stops = (backfill != "any" or job.aged) and is_possible(view, job)
        return Then.STOP if stops else Then.PASS

    head = walk(plan, Listed(view, left), order, otherwise, why=why, until_full=True)
    if head is not None and backfill == "easy":
        _fill_behind(plan, head, left, order)


def _fill_behind(plan: Plan, head: Job, behind: Iterable[Job], order: str) -> None:
    """Start those behind the head that do not delay it."""
    reservation = reserve(plan, head)
    if reservation is None:
        return
    now_s, kept = plan.view.now_s, frozenset(reservation.devices)
    apart = plan.fork()  # What is free there the head does not need.
    apart.suppose_placed(head, reservation.devices)
    unfit: set[tuple[Plan, SchedulingClass]] = set()

    def find(job: Job) -> tuple[DeviceId, ...] | None:
        scheduling_class = plan.view.queue.class_of(job)
        ends = end_if_started(job, now_s) <= reservation.start_s
        for where in (apart, plan) if ends else (apart,):
            if (where, scheduling_class) not in unfit:
                devices = where.find_free(job)
                if devices is not None:
                    apart.suppose_placed(job, devices)
                    return devices
                unfit.add((where, scheduling_class))
        return None

    def why(_: Job, devices: tuple[DeviceId, ...]) -> Reason:
        is_apart, after_s = kept.isdisjoint(devices), reservation.start_s - now_s
        return because("backfilled-apart" if is_apart else "backfilled-before", order, head.job_id, after_s)

    walk(plan, Each(behind), order, lambda _: Then.PASS, find=find, why=why, until_full=True)


class OrderParameters(PolicyParameters, frozen=True, kw_only=True):
    """Named options of an order."""

    backfill: Backfill = "none"
    """Who may start ahead of a job that does not fit. `none`: nobody. `easy`: whoever does not delay the
    first such job, by the expected times. `any`: whoever fits."""


class PassingParameters(OrderParameters, frozen=True, kw_only=True):
    """The options of an order that lets whoever fits pass."""

    backfill: Backfill = "any"
