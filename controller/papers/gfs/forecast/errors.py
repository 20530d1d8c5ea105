"""How wrong forecasts were: quantiles corrected by their own earlier errors, and the scores of a test.

Rule: the correction is rolling CQR (Romano et al., NeurIPS '19). An error counts only once it is observed: a
forecast made at origin t for t + h counts from origin t + h on, never earlier. Errors are kept by series,
hours ahead and level, the last WINDOW of each; a forecast whose hour stayed unknown has none. An error is
(truth - forecast quantile) in units of the scale that the forecast had, so that a series that has doubled has
corrections twice as large.

Rule: a score counts only hours whose truth is known, all of them alike: over series, origins and hours ahead.
So an error of a large pool weighs more than one of a small pool, as it does in GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from cotenant.controller.papers.gfs.forecast.demand import MONTH_H, Floats

WINDOW: Final = MONTH_H


def correction(errors: Floats, level: float) -> float:
    """What to add to a forecast quantile so that `level` of the truths lie at or below it: the k-th smallest
    of n errors, k = ceil((n + 1) * level); the largest where there are too few, 0 where there is none."""
    count = len(errors)
    if not count:
        return 0.0
    rank = min(count, math.ceil((count + 1) * level))
    return float(np.partition(errors, rank - 1)[rank - 1])


def enough(count: int, level: float) -> bool:
    """Whether so many errors determine this level; with fewer the largest stands in."""
    return math.ceil((count + 1) * level) <= count


def rolling(errors: Floats, hours_ahead: int, level: float, before: Floats | None = None) -> Floats:
    """The correction at each origin, from the errors of consecutive origins (NaN: none).

    Args:
        errors: of the forecasts made at these origins, `hours_ahead` each.
        before: errors from earlier, oldest first, all of them observed before the first origin.
    """
    earlier = np.empty(0) if before is None else before
    every, first = np.concatenate((earlier, errors)), len(earlier)
    found = np.empty(len(errors))
    for origin in range(len(errors)):
        # Made `hours_ahead` origins ago: its hour is this origin's own.
        end = first + max(0, origin - hours_ahead + 1)
        seen = every[max(0, end - 2 * WINDOW) : end]
        found[origin] = correction(seen[np.isfinite(seen)][-WINDOW:], level)
    return found


def order_quantiles(quantiles: Floats, levels: Sequence[float]) -> Floats:
    """Makes quantiles possible as demand: none below 0, none below that of a lower level. The last axis is
    the levels'."""
    assert list(levels) == sorted(levels), "levels rise"
    ordered: Floats = np.maximum.accumulate(np.maximum(quantiles, 0.0), axis=-1)
    return ordered


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a forecast in GPUs, but for `mape` and coverage, which are shares. Null where nothing can
    be said."""

    mae: float
    rmse: float
    mape: float | None
    """Over the hours with demand."""
    pinball_90: float
    pinball_95: float
    coverage_90: float
    """The share of hours at or below the .9 quantile."""
    coverage_95: float


def pinball(truth: Floats, quantile: Floats, level: float) -> Floats:
    """The pinball loss of each hour: `level` per GPU that was missing, 1 - `level` per GPU reserved in
    vain."""
    short = truth - quantile
    loss: Floats = np.maximum(level * short, (level - 1) * short)
    return loss


def scores(truth: Floats, point: Floats, q90: Floats, q95: Floats) -> Scores:
    """All of one shape; NaN where the truth is unknown.

    Raises:
        ValueError: no truth is known at all.
    """
    known = np.isfinite(truth)
    if not known.any():
        raise ValueError("no hour that could be judged is known")
    y, error = truth[known], (truth - point)[known]
    positive = y > 0
    return Scores(
        mae=float(np.abs(error).mean()),
        rmse=float(np.sqrt((error**2).mean())),
        mape=float((np.abs(error)[positive] / y[positive]).mean()) if positive.any() else None,
        pinball_90=float(pinball(y, q90[known], 0.9).mean()),
        pinball_95=float(pinball(y, q95[known], 0.95).mean()),
        coverage_90=float((y <= q90[known]).mean()),
        coverage_95=float((y <= q95[known]).mean()),
    )
