"""Running jobs that could be preempted, in the order in which they would be: most remaining service first.

Rule: nothing is sorted per decision. Jobs of one width stand in this order already, and the few widths are
merged as far as somebody asks.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cotenant.controller.domain.ids import HostId
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.view import View
from cotenant.controller.policies.victims import devices_by_host

Spare = tuple[float, int, float, Job]
"""Remaining service, negative (the most comes first); number; time left beyond what it costs to put the job
back and start it again; the job."""
NOBODY: Final[Iterator[Job]] = iter(())
"""Whom most that ask could preempt."""


def cost_s(victim: Job) -> float:
    """What it costs to put a running job back and start it again: its load and two pauses."""
    return victim.expected_load_s + 2.0 * victim.expected_pause_s


class Spares:
    """Those that have more than `least_s` to spare, at one moment."""

    def __init__(self, view: View, least_s: float) -> None:
        self._now_s, self._least_s = view.now_s, least_s
        self._known: list[Spare] = []
        """In order, as far as anybody has asked; what follows is in the heap: the next of each width."""
        self._heap: list[tuple[Spare, Iterator[Spare]]] = []
        paced = {job.number for job in view.paced()}  # Their ends are not in the order of remaining time.
        for jobs in view.running_by_width().values():
            if paced:
                self._add(job for job in reversed(jobs) if job.number not in paced)
            else:
                self._add(reversed(jobs))
        for job in view.paced():
            self._add((job,))
        heapq.heapify(self._heap)
        self.most_gpu_s = -self._heap[0][0][0] if self._heap else 0.0
        """Who has as much service left itself preempts none of them."""
        self._most_s = max([-spare[0] / spare[3].spec.gpus_min for spare, _ in self._heap], default=0.0)
        """Nor does who needs as long."""
        self._vain_gpu_s = self._vain_s = float("inf")
        """Nor does who has as much service left, and needs as long, as one that found nobody."""
        self._together = Together(view)

    def worth_preempting(self, plan: Plan, gpu_s: float, needs_s: float) -> Iterator[Job]:
        """Those with more service left than so much, and more time to spare than is needed. What one plan
        takes away it does not give back."""
        if gpu_s >= self.most_gpu_s or needs_s >= self._most_s:
            return NOBODY
        if gpu_s >= self._vain_gpu_s and needs_s >= self._vain_s:
            return NOBODY
        return self._walk(plan, gpu_s, needs_s)

    def may_be_enough(self, gpus: int, gpu_s: float) -> bool:
        """Whether those with more service left have so many devices on one host. A no is certain, a yes is
        not."""
        while self._heap and -self._heap[0][0][0] > gpu_s:
            self._look_on()
        jobs = [spare[3] for spare in self._known[len(self._together) :]]
        return self._together.most(bisect_left(self._known, (-gpu_s,)), jobs) >= gpus

    def _walk(self, plan: Plan, gpu_s: float, needs_s: float) -> Iterator[Job]:
        known, at, is_vain = self._known, 0, True
        while at < len(known) or self._look_on():
            less_gpu_s, _, spare_s, job = known[at]
            if -less_gpu_s <= gpu_s:
                break
            if spare_s > needs_s and not plan.is_leaving(job.spec.job_id):
                is_vain = False
                yield job
            at += 1
        if is_vain:
            self._vain_gpu_s, self._vain_s = gpu_s, needs_s

    def _look_on(self) -> bool:
        """Take in one more; False if there is none."""
        if not self._heap:
            return False
        spare, rest = self._heap[0]
        self._known.append(spare)
        following = next(rest, None)
        if following is None:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, (following, rest))
        return True

    def _add(self, jobs: Iterable[Job]) -> None:
        spares = self._spares(jobs)
        first = next(spares, None)
        if first is not None:
            self._heap.append((first, spares))

    def _spares(self, jobs: Iterable[Job]) -> Iterator[Spare]:
        """Of jobs that end in this order, the last first."""
        now_s, least_s = self._now_s, self._least_s
        for job in jobs:
            ends_in_s = job.end_s - now_s
            if ends_in_s <= least_s:
                return
            left_s = ends_in_s / job.slowdown
            spare_s = left_s - job.expected_load_s - 2.0 * job.expected_pause_s
            if spare_s > least_s and job.preemptible and not job.aged and job.remaining_s is not None:
                yield (-left_s * job.spec.gpus_min, job.number, spare_s, job)


class Together:
    """Of the first so many jobs of a list, how many devices they have on the host where they have most."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._on_host: dict[HostId, int] = {}
        self._most = [0]

    def __len__(self) -> int:
        """So many jobs are counted."""
        return len(self._most) - 1

    def most(self, count: int, following: Sequence[Job]) -> int:
        """Args: following: jobs of the list after those that are counted, up to `count` at least."""
        for job in following:
            most = self._most[-1]
            for host_id, devices in devices_by_host(self._view, job):
                self._on_host[host_id] = here = self._on_host.get(host_id, 0) + devices
                most = max(most, here)
            self._most.append(most)
        return self._most[count]
