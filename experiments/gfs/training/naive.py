"""Forecasts without training that no policy asks for: what every trained one must beat.

Rule: nothing after the origin is seen. `filled[i, t]` is the demand of series i in hour t, without gaps; the
answers have one row per series, one per origin, and one per hour ahead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cotenant.controller.papers.gfs.forecast import DAY_H, WEEK_H, Floats, Hours

Naive = Callable[[Floats, Hours, int], Floats]


def last_week_peak(filled: Floats, origins: Hours, horizon_h: int) -> Floats:
    """The forecast of GFS-e: the highest demand of the last 168 hours."""
    peaks = np.stack([filled[:, max(0, t + 1 - WEEK_H) : t + 1].max(axis=1) for t in origins], axis=1)
    return np.repeat(peaks[:, :, None], horizon_h, axis=2)


def seasonal(filled: Floats, origins: Hours, horizon_h: int) -> Floats:
    """The demand of a day before, or of the first hour known."""
    ahead = origins[:, None] + np.arange(1, horizon_h + 1)
    days = (ahead - origins[:, None] + DAY_H - 1) // DAY_H
    found: Floats = filled[:, np.maximum(ahead - DAY_H * days, 0)]
    return found
