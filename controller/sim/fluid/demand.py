"""Jobs with a promise, as arrays: which have no slack, which run, and when each ends if nobody else comes.

Rule: the arrays are in order of promises. Work is counted as service, device-seconds on all devices of a
job, so a job that runs on all of them loses as many per second as it has devices. `promised.py` asks here at
each event of the world and for each roll-out, which is the same play as `play.py`'s without dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LOOK_LEAST_S: Final = 60.0
"""The least time between two divisions as slack runs out: without it they come ever closer to each other."""
NO_SLACK_S: Final = 1e-6

Pace = Callable[[int, float], float]
"""(job, devices, fewer than all of its own) -> service per second."""


class Division(NamedTuple):
    """Who runs: places in the arrays, and the devices of each; the last may have fewer than it can use."""

    places: NDArray[np.int64]
    gpus: Floats


class PromisedJobs(NamedTuple):
    """The jobs present; each array has shape (jobs present,)."""

    jobs: NDArray[np.int64]
    promise_s: Floats
    """Rising; NEVER: none yet."""
    service_gpu_s: Floats
    """Left."""
    most: Floats
    """Devices that each can use."""

    def slack_s(self, now_s: float, gpus: int) -> tuple[Floats, Floats]:
        """How long each job could wait before it needs all of its devices; and how long the cluster could
        work for jobs with later promises than each has. Negative: too late."""
        until_s = self.promise_s - now_s
        return until_s - self.service_gpu_s / self.most, until_s - self.service_gpu_s.cumsum() / gpus

    def divided(self, is_urgent: NDArray[np.bool_], gpus: int) -> Division:
        """The urgent first, by promise; then by service."""
        there = len(self.jobs)
        rank = np.where(is_urgent, np.arange(-there, 0), self.service_gpu_s)
        order = rank.argsort(kind="stable")
        used = self.most[order].cumsum()
        running = min(there, int(used.searchsorted(gpus)) + 1)
        places = order[:running]
        given = self.most[places]
        given[-1] -= max(0.0, used[running - 1] - gpus)
        return Division(places, given)

    def look_s(
        self, own_s: Floats, shared_s: Floats, is_urgent: NDArray[np.bool_], division: Division, gpus: int
    ) -> float:
        """Until the first job that has slack has none, `division` as it is."""
        served = np.zeros(len(self.jobs))
        served[division.places] = division.gpus
        return max(
            LOOK_LEAST_S,
            min(
                _gone_s(own_s, 1.0 - served / self.most, is_urgent),
                _gone_s(shared_s, 1.0 - served.cumsum() / gpus, is_urgent),
            ),
        )

    def copy(self) -> PromisedJobs:
        return PromisedJobs(
            self.jobs.copy(), self.promise_s.copy(), self.service_gpu_s.copy(), self.most.copy()
        )

    def without(self, place: int) -> PromisedJobs:
        """The jobs without some, in this one's memory: do not use this one again."""
        for column in self:
            column[place:-1] = column[place + 1 :]
        return PromisedJobs(self.jobs[:-1], self.promise_s[:-1], self.service_gpu_s[:-1], self.most[:-1])


def end_s(demand: PromisedJobs, job: int, now_s: float, gpus: int, pace: Pace) -> float:
    """When `job` ends if nobody else comes."""
    if demand.most.sum() <= gpus:  # Each runs on all of its own.
        place = int(np.flatnonzero(demand.jobs == job)[0])
        return now_s + float(demand.service_gpu_s[place] / demand.most[place])
    left = demand.copy()
    while True:
        own_s, shared_s = left.slack_s(now_s, gpus)
        slack_s = np.minimum(own_s, shared_s)
        is_urgent = slack_s <= NO_SLACK_S
        division = left.divided(is_urgent, gpus)
        places = division.places
        paces = division.gpus.copy()
        last = int(places[-1])
        if paces[-1] < left.most[last]:
            paces[-1] = pace(int(left.jobs[last]), float(paces[-1]))
        ends_s = left.service_gpu_s[places] / paces
        first = int(ends_s.argmin())
        step_s = float(ends_s[first])
        # No slack falls by more than a second per second.
        if slack_s.min(initial=np.inf, where=~is_urgent) < step_s:
            look_s = left.look_s(own_s, shared_s, is_urgent, division, gpus)
            if look_s < step_s:
                left.service_gpu_s[places] -= paces * look_s
                now_s += look_s
                continue
        now_s += step_s
        ended = int(places[first])
        if left.jobs[ended] == job:
            return now_s
        left.service_gpu_s[places] -= paces * step_s
        left = left.without(ended)


def _gone_s(slack_s: Floats, falls: Floats, is_urgent: NDArray[np.bool_]) -> float:
    """How long until the first slack is used up that falls so much per second."""
    open_ = (falls > 0.0) & ~is_urgent
    return float((slack_s[open_] / falls[open_]).min(initial=np.inf))
