"""The indicators of one job alone, as a profile keeps them: Castor's Table 2, a mean and a variance each.

Rule: what was not measured is None, never 0. A NaN is turned into None where the value is born: NaN is
unequal to itself and JSON has no word for it, and these values are compared, journalled and printed. As a
feature of a model a missing value is NaN again (`controller/models/interference/features.py`).
"""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import msgspec

IndicatorName = Literal[
    "SMACT", "SMOCC", "TENSO", "DRAMA", "FP32A", "FP16A", "PCITX", "PCIRX",
    "GRACT", "NVLTX", "NVLRX", "CPU", "NETTX", "NETRX",
]  # fmt: skip
"""In the order of Table 2."""
INDICATOR_NAMES: Final[tuple[IndicatorName, ...]] = get_args(IndicatorName)


class IndicatorStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mean and variance of one indicator over the window in which the job ran alone.

    Units are those of `profiler/indicators/sources.py`: shares of 1, bytes per second, cores for CPU. The
    variance is the population's, over the samples. Several devices: the mean over them, of both.
    """

    mean: float | None = None
    variance: float | None = None
    source: str = ""
    """Where it came from: `gpm`, `dcgm`, `exporter`, `nvml`, `cpu`, `cgroup`, `replay`; empty where it is
    missing."""
    count: int = 0
    """Samples in the mean; 0 = not recorded (it was not, once)."""
    period_s: float | None = None
    """Of the sampling; the variance depends on it."""

    def __post_init__(self) -> None:
        for name in ("mean", "variance"):
            value = getattr(self, name)
            if value is not None and math.isnan(value):
                msgspec.structs.force_setattr(self, name, None)
            elif value is not None and math.isinf(value):
                raise ValueError(f"the {name} of an indicator must be finite, got {value}")
        if self.variance is not None and self.variance < 0:
            raise ValueError(f"a variance cannot be negative, got {self.variance}")

    @property
    def missing(self) -> bool:
        return self.mean is None and self.variance is None


NOT_MEASURED: Final = IndicatorStats()


class Indicators(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of Table 2. What each means is said in `profiler/indicators/sources.py`."""

    SMACT: IndicatorStats = NOT_MEASURED
    SMOCC: IndicatorStats = NOT_MEASURED
    TENSO: IndicatorStats = NOT_MEASURED
    DRAMA: IndicatorStats = NOT_MEASURED
    FP32A: IndicatorStats = NOT_MEASURED
    FP16A: IndicatorStats = NOT_MEASURED
    PCITX: IndicatorStats = NOT_MEASURED
    PCIRX: IndicatorStats = NOT_MEASURED
    GRACT: IndicatorStats = NOT_MEASURED
    NVLTX: IndicatorStats = NOT_MEASURED
    NVLRX: IndicatorStats = NOT_MEASURED
    CPU: IndicatorStats = NOT_MEASURED
    NETTX: IndicatorStats = NOT_MEASURED
    NETRX: IndicatorStats = NOT_MEASURED

    def stats_of(self, name: IndicatorName) -> IndicatorStats:
        stats: IndicatorStats = getattr(self, name)
        return stats

    @property
    def measured(self) -> tuple[IndicatorName, ...]:
        """The indicators with a mean or a variance."""
        return tuple(name for name in INDICATOR_NAMES if not self.stats_of(name).missing)
