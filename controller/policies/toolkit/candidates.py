"""Waiting jobs to be asked one by one: those of the queue, those of a list, or simply each."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from cotenant.controller.domain import Job
from cotenant.controller.planning import SchedulingClass, View


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


Waiting = Candidates | Listed | Each
"""Waiting jobs to be asked, in an order."""
