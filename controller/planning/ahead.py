"""Who goes before a waiting job, in the policy's order."""

from __future__ import annotations

from bisect import bisect_left
from itertools import takewhile
from typing import Any

from cotenant.controller.domain import Job
from cotenant.controller.planning.view import SchedulingClass, View


class QueueStanding:
    """The queue at one moment: it is read once, whatever number of jobs is asked for. Of two jobs that ask
    for different types of device neither is ahead of the other; nor is a job that the hosts that take work
    could not hold ahead of anybody."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._possible: dict[SchedulingClass, bool] = {}
        self._rivals: dict[str, tuple[list[Job], list[tuple[Any, ...]]]] = {}

    def is_possible(self, job: Job) -> bool:
        """Whether the hosts that take work could hold a waiting job, were they empty."""
        scheduling_class = self._view.queue.class_of(job)
        if scheduling_class not in self._possible:
            most = self._view.sizes.now(scheduling_class)
            self._possible[scheduling_class] = most >= scheduling_class.gpus
        return self._possible[scheduling_class]

    def ahead_of(self, job: Job) -> tuple[Job, int] | None:
        """The first job that goes before a waiting one, and how many do; None: none does."""
        heads, keys = self._rivals_of(job.spec.gpu_type)
        count = bisect_left(keys, self._view.queue.order_key(job))
        return (heads[0], count) if count else None

    def list_ahead(self, job: Job) -> list[Job]:
        """All jobs that go before a waiting one, the first of them first."""
        queue, (heads, _) = self._view.queue, self._rivals_of(job.spec.gpu_type)
        classes = {queue.class_of(head) for head in heads}
        before = takewhile(lambda other: other is not job, queue.jobs_in_order())
        return [other for other in before if queue.class_of(other) in classes]

    def _rivals_of(self, gpu_type: str) -> tuple[list[Job], list[tuple[Any, ...]]]:
        """The heads of all classes that could take devices of this type (of any type where it is empty), and
        the keys of all jobs of these classes, both in order."""
        if gpu_type not in self._rivals:
            queue = self._view.queue
            heads = [
                head
                for head in queue.heads()
                if self.is_possible(head) and (not gpu_type or head.spec.gpu_type in ("", gpu_type))
            ]
            jobs = (job for head in heads for job in queue.jobs_of_class(queue.class_of(head)))
            self._rivals[gpu_type] = heads, sorted(map(queue.order_key, jobs))
        return self._rivals[gpu_type]
