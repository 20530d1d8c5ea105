"""Indicators: their names, where a value came from, and their summary over a window.

Rule: a value that could not be measured is NaN and says why; it is never 0. Every value names its source, and
values of different sources are never mixed into one mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

SourceName = Literal["gpm", "dcgm", "nvml", "cpu", "cgroup", "replay"]


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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One value at one time, or NaN with the reason."""

    value: float
    source: SourceName
    reason: str = ""

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


class MetricsSource(Protocol):
    """Where indicators come from. `sample` needs an earlier `sample` to compare with: the first one may be
    NaN.
    """

    @property
    def name(self) -> SourceName: ...

    def sample(self) -> Sample: ...

    def close(self) -> None: ...


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and variance of one indicator over a window; both NaN where nothing was measured."""

    mean: float
    variance: float
    """Of the population, over the samples; it depends on `period_s`. NaN for a single sample."""
    count: int
    period_s: float
    source: SourceName
    reason: str = ""


def summarise(samples: Sequence[Sample], period_s: float) -> dict[Indicator, Summary]:
    """One summary per indicator that occurs; readings that are missing count neither way."""
    names = [name for name in Indicator if any(name in sample for sample in samples)]
    return {
        name: _summary([sample[name] for sample in samples if name in sample], period_s) for name in names
    }


def _summary(readings: Sequence[Reading], period_s: float) -> Summary:
    sources = {reading.source for reading in readings}
    if len(sources) != 1:
        raise ValueError(f"one window must have one source per indicator, got {sorted(sources)}")
    source = readings[0].source
    values = [reading.value for reading in readings if not reading.missing]
    if not values:
        return Summary(
            mean=math.nan,
            variance=math.nan,
            count=0,
            period_s=period_s,
            source=source,
            reason=readings[-1].reason,
        )
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        reason = "one sample has no variance"
        return Summary(mean=mean, variance=math.nan, count=1, period_s=period_s, source=source, reason=reason)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return Summary(mean=mean, variance=variance, count=len(values), period_s=period_s, source=source)
