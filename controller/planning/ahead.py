"""Who goes before a waiting job, in the policy's order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from cotenant.controller.domain import Job
from cotenant.controller.planning.view import SchedulingClass, View

Place = tuple[tuple[Any, ...], Job]
"""A waiting job behind its key in the queue's order."""


class WaitingLine:
    """The queue at one moment: it is read once, whatever number of jobs is asked for. Of two jobs that ask
    for different types of device neither is ahead of the other; nor is a job that the hosts that take work
    could not hold ahead of anybody."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._possible: dict[SchedulingClass, bool] = {}
        self._rivals: dict[str, list[Place]] = {}

    def is_possible(self, job: Job) -> bool:
        """Whether the hosts that take work could hold a waiting job, were they empty."""
        scheduling_class = self._view.queue.class_of(job)
        if scheduling_class not in self._possible:
            most = self._view.sizes.now(scheduling_class)
            self._possible[scheduling_class] = most >= scheduling_class.gpus
        return self._possible[scheduling_class]

    def ahead_of(self, job: Job) -> tuple[Job, int] | None:
        """The first job that goes before a waiting one, and how many do; None: none does."""
        rivals = self._rivals_of(job.spec.gpu_type)
        count = bisect_left(rivals, (self._view.queue.order_key(job),))
        return (rivals[0][1], count) if count else None

    def list_ahead(self, job: Job) -> Sequence[Job]:
        """All jobs that go before a waiting one, the first of them first."""
        found = self.ahead_of(job)
        return [other for _, other in self._rivals_of(job.spec.gpu_type)[: found[1] if found else 0]]

    def _rivals_of(self, gpu_type: str) -> list[Place]:
        """All jobs, in order, that could take devices of this type; of any type where it is empty."""
        if gpu_type not in self._rivals:
            queue = self._view.queue
            self._rivals[gpu_type] = sorted(
                (queue.order_key(job), job)
                for head in queue.heads()
                if self.is_possible(head) and (not gpu_type or head.spec.gpu_type in ("", gpu_type))
                for job in queue.jobs_of_class(queue.class_of(head))
            )
        return self._rivals[gpu_type]
