"""Who gets which share in the fluid world: the orders (first come first served, least remaining service, and
PCS's classes), and elastic policies from the literature, which PCS is compared with.

Rule: the cost of an order grows with the jobs that run, not with the queue. In all three the place of a
waiting job does not change, and running jobs only come nearer to the front.

Rule: an elastic policy here is the part of its system that divides devices, from its paper, for jobs whose
batch is fixed: none tunes batches, none pays for a change (l = p = 0 here). Each says what it leaves out of
its system. Ties go to the earlier job. Only `max-min` gives parts of a device.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.papers.pcs import WfqConfig, class_shares, divide
from experiments.pcs.fluid.play import NEVER, Play, Rule


class _Unhurried(Rule):
    """A rule that divides only at events."""

    look_s = NEVER


class FifoShares(_Unhurried):
    """A rule by which each job in order of arrival gets all that it can use."""

    def note_arrival(self, job: int, play: Play) -> None:
        pass

    def note_end(self, job: int) -> None:
        pass

    def shares(self, play: Play) -> Sequence[tuple[int, float]]:
        given, left = [], float(play.gpus)
        for job in play.left_gpu_s:
            most = play.jobs[job].speedup.gpus_max
            if most >= left:
                given.append((job, left))
                break
            given.append((job, float(most)))
            left -= most
        return given

    def fork(self) -> Self:
        return self


class SrsfShares(_Unhurried):
    """Least remaining service first: most devices x time left on so many (PCS calls it Tiresias)."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int]] = []
        self._running: list[int] = []

    def note_arrival(self, job: int, play: Play) -> None:
        self._running.append(job)

    def note_end(self, job: int) -> None:
        self._running.remove(job)

    def shares(self, play: Play) -> Sequence[tuple[int, float]]:
        first = sorted((self._key(job, play), job) for job in self._running)
        given: list[tuple[int, float]] = []
        waiting, self._running, left, place = self._waiting, [], float(play.gpus), 0
        taken = 0
        while left > 0.0 and (taken < len(first) or place < len(waiting)):
            if place == len(waiting) or (taken < len(first) and first[taken] < waiting[place]):
                job, taken = first[taken][1], taken + 1
            else:
                job, place = waiting[place][1], place + 1
            most = min(left, float(play.jobs[job].speedup.gpus_max))
            given.append((job, most))
            self._running.append(job)
            left -= most
        del waiting[:place]
        for item in first[taken:]:
            insort(waiting, item)
        return given

    def fork(self) -> Self:
        copy = type(self)()
        copy._waiting, copy._running = list(self._waiting), list(self._running)
        return copy

    def _key(self, job: int, play: Play) -> float:
        speedup = play.jobs[job].speedup
        return speedup.gpus_max * play.told_gpu_s(job) / speedup.values[-1]


class WfqShares(_Unhurried):
    """The rule of PCS's classes: see `papers/pcs/wfq.py`."""

    def __init__(self, config: WfqConfig) -> None:
        self._config = config
        classes = len(config.weights)
        self._members: list[list[int]] = [[] for _ in range(classes)]
        self._demands = [0] * classes
        self._class_of: dict[int, tuple[int, int]] = {}

    def note_arrival(self, job: int, play: Play) -> None:
        known = play.jobs[job]
        number = self._config.class_of(known.told_gpu_s)
        self._class_of[job] = number, known.speedup.gpus_max
        self._members[number].append(job)
        self._demands[number] += known.speedup.gpus_max

    def note_end(self, job: int) -> None:
        number, most = self._class_of.pop(job)
        self._members[number].remove(job)
        self._demands[number] -= most

    def shares(self, play: Play) -> Sequence[tuple[int, float]]:
        config, jobs = self._config, play.jobs
        given: list[tuple[int, float]] = []
        for members, share in zip(
            self._members, class_shares(self._demands, config.weights, play.gpus), strict=True
        ):
            if share > 0.0:
                # More members than devices get nothing.
                ahead = members[: int(share) + 2]
                speedups = [jobs[job].speedup for job in ahead]
                given += zip(ahead, divide(share, speedups, config.zeta_min, config.delta), strict=False)
        return given

    def fork(self) -> Self:
        copy = type(self)(self._config)
        copy._members = [list(members) for members in self._members]
        copy._demands, copy._class_of = list(self._demands), dict(self._class_of)
        return copy


GivenDevices = Sequence[tuple[int, float]]


class _OfNow(Rule):
    """A rule that needs nothing but the present state."""

    look_s = NEVER

    def note_arrival(self, job: int, play: Play) -> None:
        pass

    def note_end(self, job: int) -> None:
        pass

    def fork(self) -> Self:
        return self


class MaxMin(_OfNow):
    """A rule of equal shares; what a job cannot use is divided among the others."""

    def shares(self, play: Play) -> GivenDevices:
        mosts = sorted((play.jobs[job].speedup.gpus_max, job) for job in play.left_gpu_s)
        given, left = [], float(play.gpus)
        for number, (most, job) in enumerate(mosts):
            equal = left / (len(mosts) - number)
            given.append((job, min(equal, float(most))))
            left -= given[-1][1]
        return given


class AfsL(_OfNow):
    """AFS-L (NSDI '21, algorithm 1), as PCS evaluates it: one device at a time to the better of two jobs, all
    jobs compared in a row. The shorter one is better if the device adds more to its pace than to the other's,
    relatively (to the pace with the device for the longer one, without for the shorter one)."""

    def shares(self, play: Play) -> GivenDevices:
        jobs = play.jobs
        told_s = {job: play.told_gpu_s(job) for job in play.left_gpu_s}
        if len(told_s) >= play.gpus:  # A job without devices is always better than one that has some.
            first = sorted(told_s, key=lambda job: (told_s[job], job))[: play.gpus]
            return [(job, 1.0) for job in first]
        held = dict.fromkeys(told_s, 1)
        open_ = [job for job in told_s if jobs[job].speedup.gpus_max > 1]
        for _ in range(play.gpus - len(held)):
            if not open_:
                break
            best = open_[0]
            for other in open_[1:]:
                best = self._better(play, held, told_s, best, other)
            held[best] += 1
            if held[best] == jobs[best].speedup.gpus_max:
                open_.remove(best)
        return [(job, float(gpus)) for job, gpus in held.items()]

    def _better(self, play: Play, held: dict[int, int], told_s: dict[int, float], one: int, two: int) -> int:
        first, second = play.jobs[one].speedup.values, play.jobs[two].speedup.values
        short, long = one, two
        if told_s[two] / second[held[two]] < told_s[one] / first[held[one]]:
            short, long, first, second = two, one, second, first
        gain = first[held[short] + 1] / first[held[short]] - 1.0
        return short if gain > 1.0 - second[held[long]] / second[held[long] + 1] else long


class Themis(_OfNow):
    """Themis (NSDI '20) without its auction, as PCS evaluates it: at each event and every `lease_s`, devices
    go to the jobs that would be furthest behind their fair finish time (rho, with the contention that they
    have seen), each as many as it can use. Times in rho suppose linear speedup, as in the published code."""

    def __init__(self, lease_s: float = 600.0) -> None:
        if not lease_s > 0.0:
            raise ValueError(f"lease_s must be above 0, got {lease_s:g}")
        self.look_s = lease_s

    def shares(self, play: Play) -> GivenDevices:
        there = list(play.left_gpu_s)
        known = [play.jobs[job] for job in there]
        most = np.array([job.speedup.gpus_max for job in known], np.float64)
        work = np.array([job.told_gpu_s for job in known])
        left_s = np.array([play.told_gpu_s(job) for job in there])
        contention = np.array([play.contention(job) for job in there])
        stay_s = play.now_s - np.array([job.submit_s for job in known])
        fair_s = work / np.minimum(play.gpus / contention, most)
        free, given = float(play.gpus), list[tuple[int, float]]()
        while free > 0.0 and len(given) < len(there):
            rho = (stay_s + left_s / np.minimum(free, most)) / fair_s
            if given:
                rho[[place for place, _ in given]] = -math.inf
            place = int(np.argmax(rho))
            given.append((place, min(free, float(most[place]))))
            free -= given[-1][1]
        return [(there[place], gpus) for place, gpus in given]


GAIN_HALVES_GPU_S: Final = 4 * 3600.0
"""Pollux's weight of a job falls with the square root of its attained service above this (section 4.2.2)."""


class PolluxLike(_OfNow):
    """Pollux (OSDI '21, section 4.2): the division with the greatest fitness, the power mean with p = -1 of
    the jobs' speedups over their fair share, weighted by attained service. The devices go one by one to where
    they add most, which for this mean and concave curves is the best division; jobs without any come first,
    by weight. No batch is tuned, so goodput is throughput."""

    def shares(self, play: Play) -> GivenDevices:
        weights = {job: self._weight(play, job) for job in play.left_gpu_s}
        first = sorted(weights, key=lambda job: (-weights[job], job))[: play.gpus]
        fair = max(1.0, play.gpus / max(1, len(weights)))
        scale = {job: weights[job] * play.jobs[job].speedup.pace_on(fair) for job in first}
        return _one_by_one(play, first, lambda job, now, then: scale[job] * (1.0 / now - 1.0 / then))

    def _weight(self, play: Play, job: int) -> float:
        attained = max(play.jobs[job].work_gpu_s - play.left_gpu_s[job], 1e-9)
        return min(1.0, math.sqrt(GAIN_HALVES_GPU_S / attained))


def _one_by_one(play: Play, first: Sequence[int], gain: Callable[[int, float, float], float]) -> GivenDevices:
    """Gives one device to each job, then the other devices where they gain most."""
    values = {job: play.jobs[job].speedup.values for job in first}
    held = dict.fromkeys(first, 1)
    gains = {job: gain(job, curve[1], curve[2]) for job, curve in values.items() if len(curve) > 2}
    for _ in range(play.gpus - len(held)):
        if not gains:
            break
        best = max(gains, key=lambda job: (gains[job], -job))
        held[best] += 1
        gpus, curve = held[best], values[best]
        if gpus == len(curve) - 1:
            del gains[best]
        else:
            gains[best] = gain(best, curve[gpus], curve[gpus + 1])
    return [(job, float(gpus)) for job, gpus in held.items()]


UNALLOCATED: Final = 1.1
POWER: Final = -0.5
"""Sia's defaults: the penalty of a job that gets nothing, and the exponent of its goodput (section 4.3)."""


class SiaLike(_OfNow):
    """Sia (SOSP '23, section 4.3) on one type of device: its integer program over configurations (1, 2, 4 ...
    devices, up to what a job can use, and that number itself), solved exactly, for one type makes it a
    knapsack. No batch is tuned, and rounds are events. It prefers a job's second device to another job's
    first one: in an overloaded cluster jobs of one device starve, as its formula says."""

    def shares(self, play: Play) -> GivenDevices:
        wide = [job for job in play.left_gpu_s if play.jobs[job].speedup.gpus_max > 1]
        narrow = [job for job in play.left_gpu_s if play.jobs[job].speedup.gpus_max == 1][: play.gpus]
        saved, chosen = np.zeros(play.gpus + 1), list[NDArray[np.int64]]()
        for job in wide:
            saved, sizes_at = _add_job(play.jobs[job].speedup.values, saved)
            chosen.append(sizes_at)
        # Those of one device are alike: they fill up what is left.
        filled = saved + (UNALLOCATED - 1.0) * np.minimum(play.gpus - np.arange(play.gpus + 1), len(narrow))
        left = int(np.argmax(filled > filled.max() - 1e-12))
        given = [(job, 1.0) for job in narrow[: play.gpus - left]]
        for job, sizes_at in zip(reversed(wide), reversed(chosen), strict=True):
            if gpus := int(sizes_at[left]):
                given.append((job, float(gpus)))
                left -= gpus
        return given


def _add_job(
    values: Sequence[float], saved: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The most that is saved with so many devices once there is one job more, and its devices then; of equal
    sums those that leave more to the jobs before it."""
    sizes = [0, *(size for size in _sizes(len(values) - 1) if size < len(saved))]
    tried = np.full((len(sizes), len(saved)), -np.inf)
    tried[0] = saved
    for row, size in enumerate(sizes[1:], 1):
        tried[row, size:] = saved[: len(saved) - size] + UNALLOCATED - values[size] ** POWER
    pick = np.argmax(tried > tried.max(axis=0) - 1e-12, axis=0)
    return tried[pick, np.arange(len(saved))], np.array(sizes, np.int64)[pick]


def _sizes(most: int) -> list[int]:
    return sorted({1 << power for power in range(most.bit_length())} | {most})
