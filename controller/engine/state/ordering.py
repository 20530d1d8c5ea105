"""The orders of jobs that every event needs: who waits, who runs, who loads.

Rule: an index remembers the entry that it made for a job, and removes the job by that entry. So a job may
change while it is in the index, and comparisons of tuples are decided before they reach the job.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, overload

from cotenant.controller.domain import LEAVING, LOADING, RUNNING, Job
from cotenant.controller.planning import SchedulingClass, scheduling_class_of

QueueKey = Callable[[Job], tuple[float, ...]]
QueueEntry = tuple[int, tuple[float, ...], int, Job]
"""The rank, the policy's key, the number: the order of waiting jobs."""
Runs = tuple[float, int, Job]
"""Seconds and the number, negated: of two equal ones the first to arrive stands last."""

EMPTY_QUEUES_KEPT = 1_000
AGED: Final = -(1 << 30)
"""The rank of aged jobs: before all others."""

_job_of: Callable[[Any], Job] = itemgetter(-1)


class JobSequence(Sequence[Job]):
    """The jobs of an index, read-only and in its order; always as it is now."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Sequence[Any]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Job]:
        return map(_job_of, self._entries)

    def __reversed__(self) -> Iterator[Job]:
        return map(_job_of, reversed(self._entries))

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | Sequence[Job]:
        if isinstance(index, slice):
            return [_job_of(entry) for entry in self._entries[index]]
        return _job_of(self._entries[index])


class ClassQueue:
    """Waiting jobs of one class."""

    __slots__ = ("entries", "head", "jobs", "scheduling_class")

    def __init__(self, scheduling_class: SchedulingClass) -> None:
        self.scheduling_class = scheduling_class
        self.entries: list[QueueEntry] = []
        self.head: QueueEntry | None = None
        self.jobs = JobSequence(self.entries)


class JobQueue:
    """Waiting jobs, one queue per scheduling class, and the first of each queue in order. Implements
    `QueueView`."""

    def __init__(self, queue_key: QueueKey) -> None:
        self._queue_key = queue_key
        self._class_of: Callable[[Job], SchedulingClass] = scheduling_class_of
        self._queues: dict[SchedulingClass, ClassQueue] = {}
        """An empty queue stays for the next job of its class; at most `EMPTY_QUEUES_KEPT` do."""
        self._at: dict[int, tuple[QueueEntry, ClassQueue]] = {}
        self._heads: list[QueueEntry] = []
        self.fresh: list[Job] = []
        """Jobs that this event added, though they may have left again."""

    def add(self, job: Job, *, is_new: bool) -> None:
        scheduling_class = self._class_of(job)
        if scheduling_class not in self._queues:
            self._add_queue(scheduling_class)
        queue = self._queues[scheduling_class]
        entry = (AGED if job.aged else job.rank, self._queue_key(job), job.number, job)
        insort(queue.entries, entry)
        self._at[job.number] = (entry, queue)
        if queue.head is None or entry < queue.head:
            self._set_head(queue, entry)
        if is_new:
            self.fresh.append(job)

    def remove(self, job: Job) -> None:
        entry, queue = self._at[job.number]
        del self._at[job.number]
        entries = queue.entries
        if queue.head is entry:
            del entries[0]
            self._set_head(queue, entries[0] if entries else None)
        else:
            del entries[bisect_left(entries, entry)]

    def _set_head(self, queue: ClassQueue, entry: QueueEntry | None) -> None:
        heads = self._heads
        if queue.head is not None:
            del heads[bisect_left(heads, queue.head)]
        if entry is not None:
            insort(heads, entry)
        queue.head = entry

    def _add_queue(self, scheduling_class: SchedulingClass) -> None:
        if len(self._queues) - len(self._heads) >= EMPTY_QUEUES_KEPT:
            self._queues = {s: queue for s, queue in self._queues.items() if queue.head is not None}
        self._queues[scheduling_class] = ClassQueue(scheduling_class)

    def divide(self, class_of: Callable[[Job], SchedulingClass]) -> None:
        """Divides the jobs into other classes."""
        if class_of is not self._class_of:
            self._class_of = class_of
            self.reorder(self._queue_key)

    def reorder(self, queue_key: QueueKey) -> None:
        """Sorts anew by another policy's order."""
        waiting = [entry[-1] for entry, _ in self._at.values()]
        newcomers = self.fresh
        self._queue_key, self._queues, self._heads = queue_key, {}, []
        self._at.clear()
        for job in waiting:
            self.add(job, is_new=False)
        self.fresh = newcomers

    # --- Reading -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._at)

    def heads(self) -> Iterator[Job]:
        return map(_job_of, self._heads)

    def jobs_of_class(self, scheduling_class: SchedulingClass) -> Sequence[Job]:
        queue = self._queues.get(scheduling_class)
        return () if queue is None else queue.jobs

    def jobs_in_order(self) -> Iterator[Job]:
        """All of them, merged lazily."""
        heads = iter(self._heads)
        head = next(heads, None)
        started: list[tuple[QueueEntry, Iterator[QueueEntry]]] = []  # Queues whose head was tried.
        while head is not None or started:
            if head is not None and not (started and started[0][0] < head):
                heapq.heappush(started, (head, islice(self._at[head[2]][1].entries, 1, None)))
                head = next(heads, None)
            entry, rest = started[0]
            yield entry[-1]
            for after in rest:
                heapq.heapreplace(started, (after, rest))
                break
            else:
                heapq.heappop(started)

    def newcomers(self) -> Sequence[Job]:
        """Jobs that this event added and that still wait."""
        if not self.fresh:
            return ()
        alone, *others = self.fresh
        if not others:
            return self.fresh if alone.number in self._at else ()
        entries = {job.number: at[0] for job in self.fresh if (at := self._at.get(job.number))}
        return [entry[-1] for entry in sorted(entries.values())]

    def class_of(self, job: Job) -> SchedulingClass:
        number = job.number
        if number in self._at:
            entry, queue = self._at[number]
            if entry[-1] is job:
                return queue.scheduling_class
        return self._class_of(job)

    def order_key(self, job: Job) -> tuple[Any, ...]:
        """Aged jobs first, then by rank, then the policy's order, ties by arrival."""
        number = job.number
        if number in self._at:
            return self._at[number][0]
        return AGED if job.aged else job.rank, self._queue_key(job), number

    def check(self, queued: Iterable[Job]) -> None:
        """Assert that exactly these wait, each in its queue, and that the heads are the heads."""
        standing = [entry for queue in self._queues.values() for entry in queue.entries]
        assert sorted(entry[2] for entry in standing) == sorted(job.number for job in queued)
        assert all(self._at[entry[2]][0] is entry for entry in standing) and len(self._at) == len(standing)
        for queue in self._queues.values():
            assert queue.head is (queue.entries[0] if queue.entries else None), queue.scheduling_class
            for entry in queue.entries:
                job = entry[-1]
                rank = AGED if job.aged else job.rank
                assert entry[:3] == (rank, self._queue_key(job), job.number), job
                assert self._class_of(job) == queue.scheduling_class, job
        assert self._heads == sorted(q.head for q in self._queues.values() if q.head is not None)


class RunningJobs:
    """Jobs that hold devices: those that train by predicted end, those that load by remaining time, and those
    that leave. Implements `RunningView`."""

    def __init__(self) -> None:
        self._training: list[Runs] = []
        self._loading: list[Runs] = []
        self._leaving: dict[int, Job] = {}
        self._paced: dict[int, Job] = {}
        self._at: dict[int, Runs] = {}
        self.training = JobSequence(self._training)
        self.loading = JobSequence(self._loading)
        self.leaving: Collection[Job] = self._leaving.values()
        self.paced: Mapping[int, Job] = self._paced

    def add(self, job: Job) -> None:
        """Adds a job to the index; the job's phase and `end_s` say where."""
        number, phase = job.number, job.phase
        if phase is RUNNING:
            self._at[number] = entry = (job.estimate.end_s, -number, job)
            insort(self._training, entry)
            if job.estimate.slowdown != 1.0:
                self._paced[number] = job
        elif phase is LOADING:
            left_s = job.estimate.remaining_s
            self._at[number] = entry = (float("inf") if left_s is None else left_s, -number, job)
            insort(self._loading, entry)
        else:
            assert phase in LEAVING, f"job {job.job_id} is {phase}"
            self._leaving[number] = job

    def remove(self, job: Job) -> None:
        """Removes a job from the index; called before its phase changes."""
        number, phase = job.number, job.phase
        if phase in LEAVING:
            del self._leaving[number]
            return
        entry = self._at[number]
        del self._at[number]
        entries = self._training if phase is RUNNING else self._loading
        place = bisect_left(entries, entry)
        assert entries[place] is entry, f"job {job.job_id} is not where it stood"
        del entries[place]
        if self._paced:
            self._paced.pop(number, None)

    def jobs_by_end(self) -> list[Job]:
        """All of them, by predicted end, ties by arrival."""
        return sorted(
            (*self.training, *self.loading, *self._leaving.values()),
            key=lambda job: (job.estimate.end_s, job.number),
        )

    def check(self, active: Iterable[Job]) -> None:
        """Assert that exactly these hold devices, each where it belongs."""
        by_phase: dict[bool | None, set[int]] = {True: set(), False: set(), None: set()}
        for job in active:
            at = None if job.phase in LEAVING else job.phase is RUNNING
            by_phase[at].add(job.number)
        assert {job.number for job in self.training} == by_phase[True]
        assert {job.number for job in self.loading} == by_phase[False]
        assert set(self._leaving) == by_phase[None]
        assert set(self._at) == by_phase[True] | by_phase[False]
        assert self._training == sorted(self._training) and self._loading == sorted(self._loading)
        assert all(end_s == job.estimate.end_s for end_s, _, job in self._training)
        assert set(self._paced) == {job.number for job in self.training if job.estimate.slowdown != 1.0}
