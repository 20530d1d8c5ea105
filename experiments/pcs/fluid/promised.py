"""Least remaining service first, allowing for later arrivals: `stretch` tells an end, `promise` keeps it.

    roll-out without arrivals x delay by smaller jobs still to come = told; told x (1 + epsilon) = promise

Rule: what a job is told rests on what has arrived so far, never on what comes. A promise is given at the
arrival, checked by a roll-out with the promise in it, and never changed: with no arrivals after it, the job
ends by its promise. Later arrivals may break it.

Both are ours, from no paper. The delay is that of a queue in which smaller jobs go first: where they take a
part rho of the cluster, a job takes 1 / (1 - rho) times as long.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from experiments.pcs.fluid.demand import NO_SLACK_S, PromisedJobs, end_s
from experiments.pcs.fluid.play import NEVER, Play, Rule, predicted_end_s
from experiments.pcs.fluid.rules import SrsfShares

RHO_MOST: Final = 0.9
"""At a load of 1 and more the delay is infinite; ours is ten times the roll-out then."""
OBSERVED_LEAST_S: Final = 86_400.0
"""The shortest time over which a load is taken: two jobs in the first minute are none."""
LATER: Final = 1.1
"""A promise that its roll-out breaks is given again, at least this many times as far off."""


class SmallerJobs:
    """Past arrivals, which say what part of the cluster smaller jobs take."""

    def __init__(self, stretch: float) -> None:
        self._stretch = stretch
        self._service_gpu_s = array("d")
        self._first_s = NEVER

    def told_s(self, alone_s: float, service_gpu_s: float, play: Play) -> float:
        """How long a job of that size takes that would take `alone_s` if nobody else came."""
        most = sum(play.jobs[job].speedup.gpus_max for job in play.left_gpu_s)
        if most <= play.gpus:  # Nobody waits.
            return alone_s
        sizes = np.frombuffer(self._service_gpu_s)
        observed_s = max(play.now_s - self._first_s, OBSERVED_LEAST_S)
        rho = float(sizes[sizes < service_gpu_s].sum()) / (play.gpus * observed_s)
        return alone_s * (1.0 + self._stretch * (1.0 / (1.0 - min(rho, RHO_MOST)) - 1.0))

    def add(self, service_gpu_s: float, now_s: float) -> None:
        self._first_s = min(self._first_s, now_s)
        self._service_gpu_s.append(service_gpu_s)


class StretchShares(SrsfShares):
    """Tells more than the roll-out says; the order is that of `srsf`."""

    def __init__(self, stretch: float = 1.0) -> None:
        super().__init__()
        self._smaller = SmallerJobs(_check_number("stretch", stretch))

    def note_arrival(self, job: int, play: Play) -> None:
        super().note_arrival(job, play)
        self._smaller.add(self._key(job, play), play.now_s)

    def told_end_s(self, job: int, play: Play) -> float:
        alone_s = predicted_end_s(play, job) - play.now_s
        return play.now_s + self._smaller.told_s(alone_s, self._key(job, play), play)


class _Sizes(NamedTuple):
    """The sizes of all jobs of a play, by their places in it; shape (jobs,)."""

    most: NDArray[np.float64]
    """Devices."""
    service: NDArray[np.float64]
    """Device-seconds on all of its devices for each of work."""

    @classmethod
    def make(cls, play: Play) -> _Sizes:
        most = np.array([float(job.speedup.gpus_max) for job in play.jobs])
        return cls(most, most / np.array([job.speedup.values[-1] for job in play.jobs]))


class PromiseShares(Rule):
    """A rule that keeps promises: a processor-demand test in their order finds the jobs without slack, which
    go first; the others follow as under `srsf`.

    A job has no slack if it must run on all of its devices until its promise from now on, or if the cluster
    must work for jobs with promises up to its own, and nothing else, until then.
    """

    def __init__(self, stretch: float = 1.0, epsilon: float = 0.0) -> None:
        self.look_s = NEVER
        self._epsilon = _check_number("epsilon", epsilon)
        self._smaller = SmallerJobs(_check_number("stretch", stretch))
        self._told_end_s: dict[int, float] = {}
        self._sizes = _Sizes(np.empty(0), np.empty(0))
        self._queue = np.empty(0, np.int64)
        """Jobs that are there, by promise; shape (there,)."""
        self._promise_s = np.empty(0)
        """When each of them has to have ended; shape (there,)."""
        self._service_gpu_s = np.empty(0)
        """Left, as far as known, of all jobs; shape (jobs,)."""

    def note_arrival(self, job: int, play: Play) -> None:
        if not len(self._sizes.most):
            self._sizes, self._service_gpu_s = _Sizes.make(play), np.zeros(len(play.jobs))
        self._see(job, play)
        service_gpu_s = float(self._service_gpu_s[job])
        self._put(job, NEVER)
        told_s = self._smaller.told_s(self._alone_s(job, play), service_gpu_s, play)
        self._smaller.add(service_gpu_s, play.now_s)
        while True:
            promised_s = told_s * (1.0 + self._epsilon)
            self._remove(job)
            self._put(job, play.now_s + promised_s)
            kept_s = self._alone_s(job, play)
            if kept_s <= promised_s + NO_SLACK_S:
                break
            told_s = max(told_s * LATER, kept_s)
        self._told_end_s[job] = play.now_s + told_s

    def told_end_s(self, job: int, play: Play) -> float:
        return self._told_end_s[job]

    def promise_s(self, job: int) -> float:
        """When a job that is there has to have ended."""
        return float(self._promise_s[self._queue == job][0])

    def note_end(self, job: int) -> None:
        self._remove(job)

    def shares(self, play: Play) -> list[tuple[int, float]]:
        if not len(self._queue):
            self.look_s = NEVER
            return []
        demand = self._demand(play)
        division, slack = demand.divide(play.now_s, play.gpus)
        self.look_s = demand.look_s(slack, division, play.gpus)
        return list(zip(self._queue[division.places].tolist(), division.gpus.tolist(), strict=True))

    def fork(self) -> Self:
        copy = type(self)()
        copy._sizes, copy._service_gpu_s = self._sizes, self._service_gpu_s.copy()
        copy._queue, copy._promise_s = self._queue, self._promise_s
        return copy

    def _demand(self, play: Play) -> PromisedJobs:
        for job, _ in play.running:
            if job in play.left_gpu_s:
                self._see(job, play)
        queue = self._queue
        return PromisedJobs(queue, self._promise_s, self._service_gpu_s[queue], self._sizes.most[queue])

    def _alone_s(self, job: int, play: Play) -> float:
        """How long it takes if nobody else comes."""

        def pace(other: int, gpus: float) -> float:
            return float(play.jobs[other].speedup.pace_on(gpus) * self._sizes.service[other])

        return end_s(self._demand(play), job, play.now_s, play.gpus, pace) - play.now_s

    def _see(self, job: int, play: Play) -> None:
        self._service_gpu_s[job] = play.told_gpu_s(job) * self._sizes.service[job]

    def _put(self, job: int, promise_s: float) -> None:
        place = int(np.searchsorted(self._promise_s, promise_s, side="right"))
        self._queue = np.insert(self._queue, place, job)
        self._promise_s = np.insert(self._promise_s, place, promise_s)

    def _remove(self, job: int) -> None:
        kept = self._queue != job
        self._queue, self._promise_s = self._queue[kept], self._promise_s[kept]


def _check_number(name: str, value: float) -> float:
    if not 0.0 <= value < NEVER:
        raise ValueError(f"{name} must be a number of 0 or more, got {value:g}")
    return value
