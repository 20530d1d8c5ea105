"""Indicators: their names, where a value came from, and their summary over a window.

Rule: a value that could not be measured is NaN and says why; it is never 0. Every value names its source, and
values of different sources are never mixed into one mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from cotenant.profiler.indicators.window import Window

SourceName = Literal["gpm", "dcgm", "exporter", "nvml", "cpu", "cgroup", "replay"]
"""`exporter`: DCGM's values, as a dcgm-exporter shows them."""

Wish = Literal["auto", "gpm", "dcgm", "exporter", "nvml"]


class Indicator(StrEnum):
    """Castor's table 2, then two more that GPM and DCGM offer. The unit stands behind each."""

    GRACT = "GRACT"
    """Share of the time in which anything ran, 0 to 1."""
    SMACT = "SMACT"
    """Share of the multiprocessors (cores) that were busy, 0 to 1."""
    SMOCC = "SMOCC"
    """Resident warps (runnable threads) over what fits (cores). Above 1 only for a CPU slot."""
    TENSO = "TENSO"
    """Tensor pipe active, 0 to 1."""
    DRAMA = "DRAMA"
    """Memory interface active, 0 to 1."""
    FP32A = "FP32A"
    """FP32 pipe active, 0 to 1."""
    FP16A = "FP16A"
    """FP16 pipe active, 0 to 1."""
    PCITX = "PCITX"
    """Bytes per second."""
    PCIRX = "PCIRX"
    """Bytes per second."""
    NVLTX = "NVLTX"
    """Bytes per second."""
    NVLRX = "NVLRX"
    """Bytes per second."""
    CPU = "CPU"
    """Host processors used by the job's processes, in cores."""
    NETTX = "NETTX"
    """Bytes per second, the whole host's."""
    NETRX = "NETRX"
    """Bytes per second, the whole host's."""
    FP64A = "FP64A"
    """FP64 pipe active, 0 to 1."""
    INTA = "INTA"
    """Integer pipe active, 0 to 1."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say."""

    source: Wish = "auto"
    dcgm: str = "127.0.0.1"
    """Unix socket or loopback address of the host engine."""
    exporter: str = ""
    """URL; empty = there is none."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One value at one time, or NaN with the reason."""

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


class MetricsSource(Protocol):
    """Where indicators come from. `sample` needs an earlier `sample` to compare with: the first one may be
    NaN.
    """

    @property
    def name(self) -> SourceName: ...

    @property
    def period_s(self) -> float:
        """How often to ask."""

    def sample(self) -> Sample: ...

    def samples(self) -> tuple[Timed, ...]:
        """All since the last question, oldest first; never waits for long."""

    def close(self) -> None: ...


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
    late: int = 0
    """Of `count`, those that came late: in the mean, not in the variance."""


class Windows:
    """The windows of all indicators over the same time, in constant memory."""

    def __init__(self) -> None:
        self._windows: dict[Indicator, Window] = {}
        self._sources: dict[Indicator, SourceName] = {}
        self._reasons: dict[Indicator, str] = {}
        self._periods: dict[Indicator, float] = {}

    def __bool__(self) -> bool:
        return bool(self._windows)

    def add(self, sample: Timed) -> None:
        """Raises ValueError: an indicator that came from another source until now."""
        for name, reading in sample.values.items():
            source = self._sources.setdefault(name, reading.source)
            if source != reading.source:
                both = sorted((source, reading.source))
                raise ValueError(f"one window must have one source per indicator, got {both}")
            self._periods[name] = sample.period_s
            window = self._windows.setdefault(name, Window())
            lasted_s = sample.at_s - sample.since_s
            window.add(reading.value, lasted_s, sample.period_s, gauge=reading.gauge)
            if reading.missing:
                self._reasons[name] = reading.reason

    def summaries(self) -> dict[Indicator, Summary]:
        """One per indicator that occurred; readings that are missing count neither way."""
        return {name: self._summary(name) for name in Indicator if name in self._windows}

    def _summary(self, name: Indicator) -> Summary:
        stats = self._windows[name].stats()
        reason = self._reasons.get(name, "") if not stats.count else ""
        if stats.count and math.isnan(stats.variance):
            reason = "fewer than two samples in time have no variance"
        return Summary(
            mean=stats.mean,
            variance=stats.variance,
            count=stats.count,
            period_s=self._periods[name],
            source=self._sources[name],
            reason=reason,
            late=stats.late,
        )
