"""Where each class stands at one moment: what it is due, what it holds, who is next in it.

Rule: the cost grows with the scheduling classes that wait and the jobs that have devices, never with the
length of the queue: a queue is sorted by class, so bisection finds where a class begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from cotenant.controller.domain import ON_DEVICES, RUNNING, Job, Phase
from cotenant.controller.papers.pcs.wfq import WfqConfig, class_shares
from cotenant.controller.planning import Plan, View

LEAVING = (Phase.CHECKPOINTING, Phase.STOPPING)


def size_gpu_s(job: Job, now_s: float) -> float:
    """Training of the whole job on the fewest devices that it takes, done and to do, x those devices;
    infinite if unknown. It stands still while the job waits, and while it runs as expected, on any number."""
    left_s = job.known_left_s(now_s)
    return float("inf") if left_s is None else _whole_s(job, left_s, now_s) * job.spec.gpus_min


def _whole_s(job: Job, left_s: float, now_s: float) -> float:
    step_s = job.measured.solo_step_s
    running_s = now_s - job.phase_since_s if job.phase is RUNNING else 0.0
    if not job.spec.is_elastic:
        return job.spent.run_s + running_s + left_s
    if step_s is None:
        return job.spent.run_s + running_s / job.estimate.slowdown + left_s
    if job.spec.iterations is not None:
        return max(job.spec.iterations * step_s, left_s)
    since_s = (
        now_s - job.estimate.remaining_at_s if job.phase is RUNNING else 0.0
    )  # Since its steps were counted.
    return job.progress.step * step_s + since_s / job.estimate.slowdown + left_s


class Lane:
    """The waiting jobs of one class, first come, first served."""

    def __init__(self) -> None:
        self._parts: list[tuple[Sequence[Job], int, int]] = []
        """Per scheduling class: its queue, and where this class begins and ends in it."""

    def add(self, queue: Sequence[Job], first: int, last: int) -> None:
        if first < last:
            self._parts.append((queue, first, last))

    def first(self) -> Job | None:
        heads = [queue[first] for queue, first, _ in self._parts]
        return min(heads, key=lambda job: job.number, default=None)

    def advance(self) -> None:
        """Goes on to the next job: the first one is settled."""
        job = self.first()
        parts = [
            (queue, first + 1 if queue[first] is job else first, last) for queue, first, last in self._parts
        ]
        self._parts = [part for part in parts if part[1] < part[2]]


class Standing:
    """The standing of all classes; `held` follows a plan while it is made."""

    def __init__(self, config: WfqConfig, view: View) -> None:
        self._config, self._now_s = config, view.now_s
        classes = range(len(config.weights))
        self.lanes = [Lane() for _ in classes]
        self.held = [0 for _ in classes]
        self.aged: list[Job] = []
        demand = [0 for _ in classes]
        for head in view.queue.heads():
            queue = view.queue.jobs_of_class(view.queue.class_of(head))
            begin = bisect_left(queue, 0, key=self._place)
            self.aged += queue[:begin]
            for number in classes:
                end = bisect_left(queue, number + 1, lo=begin, key=self._place)
                self.lanes[number].add(queue, begin, end)
                demand[number] += (end - begin) * head.spec.gpus_min
                begin = end
        for job in self.aged:
            demand[self.class_of(job)] += job.spec.gpus_min
        for job in view.running.leaving:
            if job.phase is Phase.CHECKPOINTING and job.resize_to is None:  # It will wait again.
                demand[self.class_of(job)] += job.spec.gpus_min
        for job in placed_jobs(view):
            self.held[self.class_of(job)] += job.spec.gpus_min
        self.gpus = sum(1 for device in view.devices.values() if view.hosts[device.host_id].state == "ok")
        used = [held + waits for held, waits in zip(self.held, demand, strict=True)]
        self.shares = class_shares(used, config.weights, self.gpus)
        self.is_empty = [not wants for wants in used]

    def class_of(self, job: Job) -> int:
        return self._config.class_of(size_gpu_s(job, self._now_s))

    def excess(self, number: int, gpus: int) -> float:
        """The devices by which the class would exceed its share with `gpus` more."""
        return self.held[number] + gpus - self.shares[number]

    def _place(self, job: Job) -> int:
        return -1 if job.aged else self.class_of(job)


def placed_jobs(view: View) -> list[Job]:
    """Jobs that have devices and stay, and jobs that have a reservation."""
    found = [
        job for job in view.running.jobs_by_end() if job.phase in ON_DEVICES and job.phase not in LEAVING
    ]
    return found + [view.jobs[job_id] for job_id in view.holdings.claimants()]


def is_preemptible_now(plan: Plan, job: Job, lease_s: float) -> bool:
    """Whether it trains, may be preempted and has had its lease."""
    since_s = plan.view.now_s - job.phase_since_s
    return (
        job.phase is Phase.RUNNING
        and job.preemptible
        and not job.aged
        and not plan.is_leaving(job.job_id)
        and since_s >= lease_s - 1e-6
    )
