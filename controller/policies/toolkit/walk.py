"""The one walk over waiting jobs that gives out devices job by job: over those of the queue, those of a list,
or simply each of some."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from cotenant.controller.domain import DeviceId, Job, Reason, because
from cotenant.controller.planning import Plan, SchedulingClass, View


class Candidates:
    """Queued jobs in order. The next one of a scheduling class comes only after `again`: where the first
    found no place, the others find none."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._heads = [*view.queue.heads()][::-1]
        self._more: list[tuple[tuple[Any, ...], int, Job]] = []

    def next(self) -> Job | None:
        heads, more = self._heads, self._more
        if heads and not (more and more[0][0] < self._view.queue.order_key(heads[-1])):
            head, self._index = heads[-1], 0
            del heads[-1]
            return head
        if not more:
            return None
        _, self._index, job = heapq.heappop(more)
        return job

    def again(self, job: Job) -> None:
        """The job that `next` has just given needs nothing more: go on with its scheduling class."""
        queue, index = self._view.queue.jobs_of_class(self._view.queue.class_of(job)), self._index + 1
        if index < len(queue):
            following = queue[index]
            heapq.heappush(self._more, (self._view.queue.order_key(following), index, following))


class Listed:
    """Jobs of a list, in its order; as of `Candidates`, the next one of a class comes only after `again`."""

    def __init__(self, view: View, jobs: Iterable[Job]) -> None:
        self._class_of, self._jobs = view.queue.class_of, iter(jobs)
        self._asked: set[SchedulingClass] = set()

    def next(self) -> Job | None:
        for job in self._jobs:
            scheduling_class = self._class_of(job)
            if scheduling_class not in self._asked:
                self._asked.add(scheduling_class)
                return job
        return None

    def again(self, job: Job) -> None:
        self._asked.discard(self._class_of(job))


class Each:
    """Every one of some jobs, whatever the one before it found."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = iter(jobs)

    def next(self) -> Job | None:
        return next(self._jobs, None)

    def again(self, job: Job) -> None:
        """Does nothing: the others of its class are asked anyway."""


JobsToAsk = Candidates | Listed | Each
"""Waiting jobs to be asked, in an order."""


DeviceIds = tuple[DeviceId, ...]
WhyPlaced = Callable[[Job, DeviceIds], Reason]


class Then(Enum):
    """How a walk goes on after a job that found no free devices."""

    AGAIN = auto()
    """The job needs nothing more: the next one of its scheduling class is asked."""
    PASS = auto()
    """No other job of its scheduling class would find more: the next class is asked."""
    STOP = auto()
    """Nobody behind it is asked."""


def walk(
    plan: Plan,
    waiting: JobsToAsk,
    order: str,
    otherwise: Callable[[Job], Then],
    *,
    find: Callable[[Job], DeviceIds | None] | None = None,
    why: WhyPlaced | None = None,
    passed_over: Callable[[Job], bool] | None = None,
    until_full: bool = False,
) -> Job | None:
    """Ask waiting jobs one by one: each gets free devices; for one that finds none, `otherwise` says how to
    go on. Jobs that this plan has placed already need nothing more.

    Args:
        order: the name of the order, for reasons.
        find: free devices for a job; default: best fit.
        why: why a job starts.
        passed_over: jobs that get nothing, and keep nobody from anything.
        until_full: end as soon as nothing is free, but for jobs behind an aged one.

    Returns:
        The job behind which nobody was asked (`STOP`), if there is one.
    """
    find = find or plan.find_free
    while (job := waiting.next()) is not None:
        then = Then.AGAIN
        if not plan.is_placed(job.job_id) and not (passed_over and passed_over(job)):
            devices = find(job) if plan.any_free() else None
            if devices is None:
                then = otherwise(job)
            else:
                told = why(job, devices) if why else because("free-devices-in-order", order, len(devices))
                plan.place(job, devices, told)
                if until_full and not plan.any_free() and not job.aged:
                    return None
        if then is Then.STOP:
            return job
        if then is Then.AGAIN:
            waiting.again(job)
    return None
