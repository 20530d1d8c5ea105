"""How good the intervals were that users were told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

import msgspec

from cotenant.controller.models.eta import EtaError

COVERAGE: Final = 0.8
"""What p10 to p90 promises."""
FAIR: Final = (0.7, 0.9)
"""A coverage outside it is flagged."""


class EtaScore(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of the newest intervals."""

    predictions: int
    uncalibrated: int
    coverage_80: float | None
    """Share of ends within p10 to p90."""
    median_bias: float | None
    """Median of actual / p50 - 1: above 0 they ended later than was told."""
    median_abs_error: float | None
    """Median of |actual / p50 - 1|."""
    width_over_jct: float | None
    """Mean width / mean actual time."""


def score(errors: Sequence[EtaError], last: int | None = None) -> EtaScore:
    """Scores the calibrated predictions among `errors`. `last`: only so many of the calibrated ones, the
    newest."""
    counted = [error for error in errors if error.was_calibrated]
    uncalibrated = len(errors) - len(counted)
    counted = counted if last is None else counted[len(counted) - last :] if last < len(counted) else counted
    if not counted:
        return EtaScore(
            predictions=0,
            uncalibrated=uncalibrated,
            coverage_80=None,
            median_bias=None,
            median_abs_error=None,
            width_over_jct=None,
        )
    ratios = [math.exp(error.bias) - 1.0 for error in counted]
    # An interval without a bound has no width: the mean is over the others.
    widths_s = [error.width_s for error in counted if math.isfinite(error.width_s)]
    actual_s = fmean(error.actual_s for error in counted)
    return EtaScore(
        predictions=len(counted),
        uncalibrated=uncalibrated,
        coverage_80=fmean(error.hit for error in counted),
        median_bias=median(ratios),
        median_abs_error=median(abs(ratio) for ratio in ratios),
        width_over_jct=fmean(widths_s) / actual_s if widths_s and actual_s > 0.0 else None,
    )
