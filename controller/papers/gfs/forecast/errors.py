"""How wrong forecasts were: quantiles corrected by their own earlier errors.

Rule: the correction is rolling CQR (Romano et al., NeurIPS '19). An error counts only once it is observed: a
forecast made at origin t for t + h counts from origin t + h on, never earlier. Errors are kept by series,
hours ahead and level, the last WINDOW of each; a forecast whose hour stayed unknown has none. An error is
(truth - forecast quantile) in units of the scale that the forecast had, so that a series that has doubled has
corrections twice as large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

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


def order_quantiles(quantiles: Floats, levels: Sequence[float]) -> Floats:
    """Makes quantiles possible as demand: none below 0, none below that of a lower level. The last axis is
    the levels'."""
    assert list(levels) == sorted(levels), "levels rise"
    ordered: Floats = np.maximum.accumulate(np.maximum(quantiles, 0.0), axis=-1)
    return ordered
