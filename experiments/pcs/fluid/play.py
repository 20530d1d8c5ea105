"""What happens in the fluid world, and when: work flows at the pace of the devices that a rule gives.

Rule: between two events (an arrival, an end, a rule's next look) nothing changes, so time jumps from one to
the next and no step length enters the result. A job ends when its work is done, to the rounding of a float.

A prediction is the same play without further arrivals: `fork` copies what is there, and the copy runs until
the job in question ends (PCS, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

from experiments.pcs.fluid.speedup import Speedup

NEVER = float("inf")


class FluidJob(NamedTuple):
    """A job of the fluid world."""

    submit_s: float
    work_gpu_s: float
    """Seconds on one device."""
    told_gpu_s: float
    """The work as rules and predictions know it."""
    speedup: Speedup
    """Up to the most devices that it can use."""


class Rule(Protocol):
    """Who gets which share of the devices."""

    look_s: float
    """How long after an event it divides anew even if nothing happens; NEVER: not at all."""

    def note_arrival(self, job: int, play: Play) -> None: ...

    def note_end(self, job: int) -> None: ...

    def shares(self, play: Play) -> Sequence[tuple[int, float]]:
        """(job, devices above 0) of all that run; gives away all devices that the jobs present can use."""

    def fork(self) -> Self:
        """A copy for a prediction, with this one's state."""

    def told_end_s(self, job: int, play: Play) -> float:
        """When a job that has just arrived is told that it will have ended."""
        return predicted_end_s(play, job)


class Play:
    """The state of the world. Jobs are known by their place in `jobs`."""

    def __init__(self, jobs: Sequence[FluidJob], gpus: int, rule: Rule, exact: bool | None = None) -> None:
        """Begins a play with none of its jobs there yet. `exact`: the told work is true; None: the
        constructor checks."""
        self.jobs, self.gpus, self.rule = jobs, gpus, rule
        self.now_s = 0.0
        self.left_gpu_s: dict[int, float] = {}
        """Work of each job that is there, in order of arrival, as far as it could be known: in a prediction
        what was told of it."""
        self.running: Sequence[tuple[int, float]] = ()
        """(job, devices), as divided after the last event."""
        self._exact = all(job.told_gpu_s == job.work_gpu_s for job in jobs) if exact is None else exact
        self._paces: list[tuple[int, float]] = []
        self.events = 0
        self._seen = 0
        self._seen_before: dict[int, tuple[int, int]] = {}

    def contention(self, job: int) -> float:
        """The mean number of jobs present, over the events of its stay."""
        seen, events = self._seen_before[job]
        return (self._seen - seen) / (self.events - events)

    def told_gpu_s(self, job: int) -> float:
        """Work that it is said to have left."""
        if self._exact:
            return self.left_gpu_s[job]
        known = self.jobs[job]
        return self.left_gpu_s[job] * (known.told_gpu_s / known.work_gpu_s)

    def arrive(self, job: int) -> None:
        """Lets a job arrive at `now_s`."""
        self._event()
        self.left_gpu_s[job] = self.jobs[job].work_gpu_s
        self._seen_before[job] = (self._seen - len(self.left_gpu_s), self.events - 1)
        self.rule.note_arrival(job, self)
        self._divide()

    def advance(self, until_s: float) -> int | None:
        """Go on to the first end, and return who ended; or to `until_s`."""
        while True:
            job, end_s = -1, NEVER
            left = self.left_gpu_s
            for other, pace in self._paces:
                if (its_s := left[other] / pace) < end_s:
                    job, end_s = other, its_s
            step_s = min(end_s, until_s - self.now_s)
            if self.rule.look_s < step_s:
                self._flow(self.rule.look_s)
                self._event()
                self._divide()
                continue
            self._flow(step_s)
            if end_s > step_s or job < 0:
                self.now_s = until_s
                return None
            self._event()
            del left[job]
            self.rule.note_end(job)
            self._divide()
            return job

    def fork(self) -> Play:
        """A copy to predict with, divided anew: what jobs have left is what was told of them."""
        left_gpu_s = self.left_gpu_s
        copy = Play(self.jobs, self.gpus, self.rule.fork(), exact=True)
        copy.now_s = self.now_s
        copy.left_gpu_s = dict(
            left_gpu_s if self._exact else {job: self.told_gpu_s(job) for job in left_gpu_s}
        )
        copy.running = self.running
        copy._seen, copy.events, copy._seen_before = self._seen, self.events, dict(self._seen_before)
        copy._divide()
        return copy

    def forget(self, job: int) -> None:
        """Forgets a job that has ended."""
        del self._seen_before[job]

    def _event(self) -> None:
        self._seen += len(self.left_gpu_s)
        self.events += 1

    def _flow(self, seconds: float) -> None:
        left = self.left_gpu_s
        for job, pace in self._paces:
            left[job] -= pace * seconds
        self.now_s += seconds

    def _divide(self) -> None:
        self.running = running = self.rule.shares(self)
        jobs = self.jobs
        self._paces = [(job, jobs[job].speedup.pace_on(gpus)) for job, gpus in running]


def predicted_end_s(play: Play, job: int) -> float:
    """When a job would end if nobody else came."""
    alone = play.fork()
    while alone.advance(NEVER) != job:
        pass
    return alone.now_s
