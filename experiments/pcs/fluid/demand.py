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


HEAD: Final = 128
"""Jobs that are looked at first: where urgent ones among them fill the cluster, no other changes anything."""


class Division(NamedTuple):
    """The division of the devices, which says who runs: places in the arrays, and the devices of each; the
    last may have fewer than it can use."""

    places: NDArray[np.int64]
    gpus: Floats


class Slack(NamedTuple):
    """The slack of the jobs that run or may come before one that runs, the first of all; shape (those
    jobs,)."""

    own_s: Floats
    """How long each could wait before it needs all of its devices; negative: too late."""
    shared_s: Floats
    """How long the cluster could work for jobs with later promises than each has."""
    is_urgent: NDArray[np.bool_]

    def first(self, count: int) -> Slack:
        return Slack(self.own_s[:count], self.shared_s[:count], self.is_urgent[:count])

    def least_s(self) -> float:
        """The least slack of the jobs that are not urgent, in seconds."""
        least_s = np.minimum(self.own_s, self.shared_s).min(initial=np.inf, where=~self.is_urgent)
        return float(least_s)


class PromisedJobs(NamedTuple):
    """The jobs that are present; each array has shape (jobs present,)."""

    jobs: NDArray[np.int64]
    promise_s: Floats
    """Rising; NEVER: none yet."""
    service_gpu_s: Floats
    """Left."""
    most: Floats
    """Devices that each can use."""

    def divide(self, now_s: float, gpus: int) -> tuple[Division, Slack]:
        """The urgent first, by promise; then by service."""
        count = HEAD
        while True:
            slack, most = self._slack(now_s, gpus, count), self.most[:count]
            order = np.flatnonzero(slack.is_urgent)
            used = most[order].cumsum()
            if len(order) and used[-1] >= gpus:
                break
            if count >= len(self.jobs):
                others = np.flatnonzero(~slack.is_urgent)
                order = np.concatenate([order, others[self.service_gpu_s[others].argsort(kind="stable")]])
                used = most[order].cumsum()
                break
            count *= 4
        running = min(len(order), int(used.searchsorted(gpus)) + 1)
        places = order[:running]
        given = most[places]
        given[-1] -= max(0.0, used[running - 1] - gpus)
        if slack.is_urgent[places[-1]]:
            slack = slack.first(int(places[-1]) + 1)
        return Division(places, given), slack

    def _slack(self, now_s: float, gpus: int, count: int) -> Slack:
        """The slack of the first `count` jobs."""
        until_s, service_gpu_s = self.promise_s[:count] - now_s, self.service_gpu_s[:count]
        own_s, shared_s = until_s - service_gpu_s / self.most[:count], until_s - service_gpu_s.cumsum() / gpus
        return Slack(own_s, shared_s, np.minimum(own_s, shared_s) <= NO_SLACK_S)

    def look_s(self, slack: Slack, division: Division, gpus: int) -> float:
        """Until the first job that has slack has none, `division` as it is."""
        count = len(slack.own_s)
        served = np.zeros(count)
        served[division.places] = division.gpus
        return max(
            LOOK_LEAST_S,
            min(
                _gone_s(slack.own_s, 1.0 - served / self.most[:count], slack.is_urgent),
                _gone_s(slack.shared_s, 1.0 - served.cumsum() / gpus, slack.is_urgent),
            ),
        )

    def copy(self) -> PromisedJobs:
        return PromisedJobs(
            self.jobs.copy(), self.promise_s.copy(), self.service_gpu_s.copy(), self.most.copy()
        )

    def drop(self, place: int) -> PromisedJobs:
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
        division, slack = left.divide(now_s, gpus)
        places = division.places
        paces = division.gpus.copy()
        last = int(places[-1])
        if paces[-1] < left.most[last]:
            paces[-1] = pace(int(left.jobs[last]), float(paces[-1]))
        ends_s = left.service_gpu_s[places] / paces
        first = int(ends_s.argmin())
        step_s = float(ends_s[first])
        # No slack falls by more than a second per second.
        if slack.least_s() < step_s:
            look_s = left.look_s(slack, division, gpus)
            if look_s < step_s:
                left.service_gpu_s[places] -= paces * look_s
                now_s += look_s
                continue
        now_s += step_s
        ended = int(places[first])
        if left.jobs[ended] == job:
            return now_s
        left.service_gpu_s[places] -= paces * step_s
        left = left.drop(ended)


def _gone_s(slack_s: Floats, falls: Floats, is_urgent: NDArray[np.bool_]) -> float:
    """How long until the first slack is used up that falls so much per second."""
    open_ = (falls > 0.0) & ~is_urgent
    return float((slack_s[open_] / falls[open_]).min(initial=np.inf))
