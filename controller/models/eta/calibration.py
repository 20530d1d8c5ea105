"""From samples to an interval, and the interval corrected by earlier errors (conformal).

Rule: each level is shifted by its own quantile of its own last errors, log(actual / raw), of the same policy
and the same kind: errors of intervals told at submission correct intervals told at submission, those of
revisits correct revisits. Below `ENOUGH` outcomes nothing is shifted, and the answer says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from cotenant.controller.domain import LEVELS, EtaInterval
from cotenant.controller.models.eta.pools import ERRORS_KEPT

ENOUGH: Final = 15
LEAST_S: Final = 1.0
"""Shorter times count as this long."""

LogErrors = Sequence[tuple[float, float, float]]
"""log(actual / raw) at each level; NaN: the bound was infinite, and says nothing."""


def quantile(ordered: Sequence[float], level: float) -> float:
    """Interpolates linearly between rising values; infinite beside an infinite one."""
    place = level * (len(ordered) - 1)
    below = int(place)
    part = place - below
    if part <= 0.0:
        return ordered[below]
    return ordered[below] + part * (ordered[below + 1] - ordered[below])


def interval_of(samples_s: Sequence[float]) -> EtaInterval | None:
    """The interval of one number per roll-out; None where half of them or more are infinite.

    What comes is one more of n numbers: it is below the k-th of them k times in n + 1 (Weibull 1939).
    """
    ordered = sorted(samples_s)
    if not ordered or not math.isfinite(quantile(ordered, 0.5)):
        return None
    gaps = max(1, len(ordered) - 1)
    places = (min(max((level * (len(ordered) + 1) - 1.0) / gaps, 0.0), 1.0) for level in LEVELS)
    low_s, mid_s, high_s = (quantile(ordered, place) for place in places)
    return EtaInterval(low_s, mid_s, high_s)


def calibrated(raw: EtaInterval, errors: LogErrors) -> EtaInterval:
    """`raw` after correction by these errors; itself where there are too few."""
    if len(errors) < ENOUGH:
        return raw
    low, mid, high = (
        [error for error in column if math.isfinite(error)]
        for column in zip(*errors[-ERRORS_KEPT:], strict=True)
    )
    p50_s = _shifted(raw.p50_s, median(mid))
    # Bounds from finite samples: a rank further out than the level, so that they hold as often as they say.
    p10_s = _shifted(raw.p10_s, -_ranked([-error for error in low], 1.0 - LEVELS[0]))
    p90_s = _shifted(raw.p90_s, _ranked(high, LEVELS[2])) if high else raw.p90_s
    return EtaInterval(min(p10_s, p50_s), p50_s, max(p90_s, p50_s))


def _shifted(bound_s: float, shift: float) -> float:
    return max(bound_s, LEAST_S) * math.exp(shift) if shift else bound_s


def _ranked(errors: list[float], level: float) -> float:
    """The k-th smallest of n, k = ceil((n + 1) * level); the largest where there are too few."""
    return sorted(errors)[min(len(errors), math.ceil((len(errors) + 1) * level - 1e-9)) - 1]


def errors_of(raw: EtaInterval, actual_s: float) -> tuple[float, float, float]:
    """The error at each level; NaN where the bound was infinite."""
    actual = math.log(max(actual_s, LEAST_S))
    low, mid, high = (
        actual - math.log(max(bound_s, LEAST_S)) if math.isfinite(bound_s) else math.nan
        for bound_s in (raw.p10_s, raw.p50_s, raw.p90_s)
    )
    return low, mid, high
