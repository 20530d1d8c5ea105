"""Mean and variance over a window of samples, and which part of it the samples missed. Pure.

Rule: a value stands for the time it was measured over and for no other. A counter's rate is a true mean over
its interval, however long that became; a gauge's value says nothing of a gap before it, so it weighs one
period at most. What came late counts in the mean and not in the variance (a mean over a longer time varies
less), and a missing value counts in neither.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

LATE_RATIO: Final = 1.5
"""A sample that comes after more than this part of its period is late: something was missed."""
ANEW: Final = "the counter started anew"
FIRST: Final = "the first sample has nothing to compare with"
NOTHING_NEW: Final = "no new value since the last sample: the counters take turns"


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """A window's summary. Mean and variance are NaN where there is nothing to say."""

    mean: float
    variance: float
    """Of the population, over the samples that came in time; it depends on their period."""
    count: int
    """Samples in the mean."""
    late: int
    """Of those, the late ones, which are not in the variance."""
    missing: int
    covered_s: float
    """Time that the mean stands for."""
    gap_s: float
    """Time between first and last sample that it does not stand for."""


class Moments:
    """Weighted mean and variance, one value at a time (West's update), in constant memory."""

    def __init__(self) -> None:
        self.weight = 0.0
        self.mean = 0.0
        self._squares = 0.0
        self.count = 0

    def add(self, value: float, weight: float) -> None:
        self.count += 1
        self.weight += weight
        step = value - self.mean
        self.mean += step * (weight / self.weight)
        self._squares += weight * step * (value - self.mean)

    @property
    def variance(self) -> float:
        """Of the population; NaN for fewer than two values."""
        return max(0.0, self._squares / self.weight) if self.count > 1 else math.nan


class Window:
    """One indicator over some time."""

    def __init__(self) -> None:
        self._all = Moments()
        self._in_time = Moments()
        self._missing = 0
        self._missed_s = 0.0

    def add(self, value: float, lasted_s: float, period_s: float, *, gauge: bool = False) -> None:
        """A sample.

        Args:
            value: NaN where it is missing.
            lasted_s: since the sample before it.
            period_s: how long that should have been.
            gauge: the value is one moment's (or the source's own last period's), not a mean over `lasted_s`.
        """
        if lasted_s <= 0.0 or period_s <= 0.0:
            raise ValueError(f"a sample takes time, got {lasted_s} s at a period of {period_s} s")
        if math.isnan(value):
            self._missing += 1
            self._missed_s += lasted_s
            return
        weight_s = min(lasted_s, period_s) if gauge else lasted_s
        self._missed_s += lasted_s - weight_s
        self._all.add(value, weight_s)
        if lasted_s <= LATE_RATIO * period_s:
            self._in_time.add(value, weight_s)

    def stats(self) -> Stats:
        count = self._all.count
        return Stats(
            mean=self._all.mean if count else math.nan,
            variance=self._in_time.variance,
            count=count,
            late=count - self._in_time.count,
            missing=self._missing,
            covered_s=self._all.weight,
            gap_s=self._missed_s,
        )


class Counter:
    """A count that only rises, as a rate. One that fell was set back: the interval in which that happened is
    unknown, and the next one is counted from where it stands now."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self.why = FIRST
        """Why the last rate was missing."""

    def rate(self, count: float, at_s: float) -> float:
        """Per second since the last count; NaN where there is none (`why`)."""
        if math.isnan(count):
            self._before, self.why = None, "the counter has no value"
            return math.nan
        before, self._before = self._before, (count, at_s)
        if before is None:
            self.why = FIRST
            return math.nan
        passed_s = at_s - before[1]
        if passed_s <= 0.0 or count < before[0]:
            self.why = ANEW if passed_s > 0.0 else FIRST
            return math.nan
        return (count - before[0]) / passed_s


class Fresh:
    """A value that somebody else samples, with the time at which they did: each one counts once.

    Where a GPU cannot measure all counters at a time, DCGM measures them in turns: between its turns a
    counter still shows its last value, and before its first one none.
    """

    def __init__(self) -> None:
        self._stamp: float | None = None

    def take(self, value: float, stamp: float) -> float:
        """The value if it is new, NaN if it was seen already or is missing."""
        if math.isnan(value) or (self._stamp is not None and stamp <= self._stamp):
            return math.nan
        self._stamp = stamp
        return value
