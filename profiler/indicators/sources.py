"""Indicators: their names, where a value came from, and their summary over a window. Pure.

Rule: a value that could not be measured is NaN and says why; it is never 0. Every value names its source, and
values of different sources are never mixed into one mean.

Rule: a value stands for the time it was measured over and for no other. A counter's rate is a true mean over
its interval, however long that became; a gauge's value says nothing of a gap before it, so it weighs one
period at most. What came late counts in the mean and not in the variance (a mean over a longer time varies
less), and a missing value counts in neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, NamedTuple

import msgspec

# --- Windows ---------------------------------------------------------------------------------------


LATE_RATIO: Final = 1.5
"""A sample that comes after more than this part of its period is late: something was missed."""
ANEW: Final = "the counter started anew"
FIRST: Final = "the first sample has nothing to compare with"
NOTHING_NEW: Final = "no new value since the last sample: the counters take turns"


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
        """The variance of the population; NaN for fewer than two values."""
        return max(0.0, self._squares / self.weight) if self.count > 1 else math.nan


class Window:
    """The values of one indicator over some time. Mean and variance are NaN where there is nothing to say."""

    def __init__(self) -> None:
        self._all = Moments()
        self._in_time = Moments()
        self.period_s = math.nan
        self.reason = ""
        """Why the last missing value is missing."""

    def add(self, value: float, lasted_s: float, period_s: float, *, gauge: bool = False) -> None:
        """Adds a sample to the window.

        Args:
            value: NaN where it is missing.
            lasted_s: since the sample before it.
            period_s: how long that should have been.
            gauge: the value is one moment's (or the source's own last period's), not a mean over `lasted_s`.
        """
        if lasted_s <= 0.0 or period_s <= 0.0:
            raise ValueError(f"a sample takes time, got {lasted_s} s at a period of {period_s} s")
        self.period_s = period_s
        if math.isnan(value):
            return
        weight_s = min(lasted_s, period_s) if gauge else lasted_s
        self._all.add(value, weight_s)
        if lasted_s <= LATE_RATIO * period_s:
            self._in_time.add(value, weight_s)

    @property
    def mean(self) -> float:
        return self._all.mean if self.count else math.nan

    @property
    def variance(self) -> float:
        """Of the population, over the samples that came in time; it depends on their period."""
        return self._in_time.variance

    @property
    def count(self) -> int:
        """Samples in the mean."""
        return self._all.count


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

    def reading(self, value: float, source: SourceName) -> Reading:
        """A value that was made from the last rate; where there was none, the reason."""
        return Reading(value=value, source=source, reason=self.why if math.isnan(value) else "")


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


# --- Indicators ------------------------------------------------------------------------------------


SourceName = Literal["gpm", "dcgm", "exporter", "nvml", "cpu", "cgroup", "replay"]
"""`exporter`: DCGM's values, as a dcgm-exporter shows them."""

Wish = Literal["auto", "gpm", "dcgm", "exporter", "nvml"]


class Indicator(StrEnum):
    """Castor's table 2, then two more that GPM and DCGM offer. What ends in TX or RX is bytes per second,
    that of NET the whole host's; all others but CPU are shares from 0 to 1."""

    GRACT = "GRACT"
    """Of the time in which anything ran."""
    SMACT = "SMACT"
    """Of the multiprocessors (cores) that were busy."""
    SMOCC = "SMOCC"
    """Resident warps (runnable threads) over what fits (cores). Above 1 only for a CPU slot."""
    TENSO = "TENSO"
    """Of the time in which the tensor pipe was active; so FP32A, FP16A, FP64A and INTA of theirs."""
    DRAMA = "DRAMA"
    """Memory interface active."""
    FP32A = "FP32A"
    FP16A = "FP16A"
    PCITX = "PCITX"
    PCIRX = "PCIRX"
    NVLTX = "NVLTX"
    NVLRX = "NVLRX"
    CPU = "CPU"
    """Host processors used by the job's processes, in cores."""
    NETTX = "NETTX"
    NETRX = "NETRX"
    FP64A = "FP64A"
    INTA = "INTA"


OF_THE_HOST: Final = (Indicator.CPU, Indicator.NETTX, Indicator.NETRX)
OF_DEVICES: Final = tuple(name for name in Indicator if name not in OF_THE_HOST)


IndicatorValues = dict[Indicator, float]
"""NaN where there is no value."""


class Taken(NamedTuple):
    """A sample of all devices, and the time it is about (monotonic clock)."""

    since_s: float
    at_s: float
    period_s: float
    devices: list[IndicatorValues]
    """One per device asked for, in that order; empty for a device that failed."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The wish that the settings state."""

    source: Wish = "auto"
    dcgm: str = "127.0.0.1"
    """Unix socket or loopback address of the host engine."""
    exporter: str = ""
    """URL; empty = there is none."""
    every_s: float = 0.0
    """No counter of a GPU is read more often."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A value at one time, or NaN with the reason."""

    value: float
    source: SourceName
    reason: str = ""
    gauge: bool = False
    """One moment's value, not a mean over the time since the sample before."""

    def __post_init__(self) -> None:
        if math.isnan(self.value) and not self.reason:
            raise ValueError("a missing value needs a reason")

    @property
    def missing(self) -> bool:
        return math.isnan(self.value)


def missing(source: SourceName, reason: str) -> Reading:
    return Reading(value=math.nan, source=source, reason=reason)


Sample = Mapping[Indicator, Reading]
"""All indicators over the time since the sample before."""


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """A sample, and the time that it is about, by the monotonic clock."""

    since_s: float
    at_s: float
    period_s: float
    """How long it should have taken."""
    values: Sample


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and variance of one indicator over a window; both NaN where nothing was measured."""

    mean: float
    variance: float
    """Of the population, over the samples; it depends on `period_s`. NaN for a single sample."""
    count: int
    period_s: float
    """Of the sampling, as intended."""
    source: SourceName
    reason: str = ""


class Windows:
    """The windows of all indicators over the same time, in constant memory."""

    def __init__(self) -> None:
        self._windows: dict[Indicator, Window] = {}
        self._sources: dict[Indicator, SourceName] = {}

    def __bool__(self) -> bool:
        return bool(self._windows)

    def add(self, sample: Timed) -> None:
        """Adds a sample to the window of each indicator. Raises ValueError: an indicator that came from
        another source until now."""
        for name, reading in sample.values.items():
            source = self._sources.setdefault(name, reading.source)
            if source != reading.source:
                both = sorted((source, reading.source))
                raise ValueError(f"one window must have one source per indicator, got {both}")
            window = self._windows.setdefault(name, Window())
            lasted_s = sample.at_s - sample.since_s
            window.add(reading.value, lasted_s, sample.period_s, gauge=reading.gauge)
            window.reason = reading.reason or window.reason

    def summaries(self) -> dict[Indicator, Summary]:
        """The summaries, one per indicator that occurred; readings that are missing count neither way."""
        return {name: self._summary(name) for name in Indicator if name in self._windows}

    def _summary(self, name: Indicator) -> Summary:
        window = self._windows[name]
        reason = window.reason if not window.count else ""
        if window.count and math.isnan(window.variance):
            reason = "fewer than two samples in time have no variance"
        return Summary(
            mean=window.mean,
            variance=window.variance,
            count=window.count,
            period_s=window.period_s,
            source=self._sources[name],
            reason=reason,
        )
