"""Queued jobs one by one, without those of a scheduling class that has just found no place."""

from __future__ import annotations

import heapq
from typing import Any

from cotenant.controller.domain import Job
from cotenant.controller.planning import View


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
        """The job that `next` has just given was placed: go on with its scheduling class."""
        queue, index = self._view.queue.jobs_of_class(self._view.queue.class_of(job)), self._index + 1
        if index < len(queue):
            following = queue[index]
            heapq.heappush(self._more, (self._view.queue.order_key(following), index, following))
