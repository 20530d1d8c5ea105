"""Forecasts that need no training: what every trained one must beat, and what stands in until there is one.

Rule: each sees only what lies at or before its origin. `filled[i, t]` is the demand of hour t; the answers
have one row per series, one per origin, and one per hour ahead (1, 2, ... of them).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cotenant.controller.models.forecast.demand import DAY_H, MONTH_H, WEEK_H, Floats, Hours

CHANGE_DAYS_MIN = 7
Naive = Callable[[Floats, Hours, int], Floats]


def last_value(filled: Floats, origins: Hours, horizon_h: int) -> Floats:
    return np.repeat(filled[:, origins, None], horizon_h, axis=2)


def last_week_peak(filled: Floats, origins: Hours, horizon_h: int) -> Floats:
    """GFS-e's forecast: the highest demand of the last 168 hours."""
    peaks = np.stack([filled[:, max(0, t + 1 - WEEK_H) : t + 1].max(axis=1) for t in origins], axis=1)
    return np.repeat(peaks[:, :, None], horizon_h, axis=2)


def seasonal(filled: Floats, origins: Hours, horizon_h: int) -> Floats:
    """The demand of a day before, or of the first hour known."""
    ahead = origins[:, None] + np.arange(1, horizon_h + 1)
    days = (ahead - origins[:, None] + DAY_H - 1) // DAY_H
    found: Floats = filled[:, np.maximum(ahead - DAY_H * days, 0)]
    return found


def last_change(filled: Floats, origins: Hours, horizon_h: int) -> Floats:
    """Last value + median change over so many hours from this hour of the day, over the last four weeks.
    With less than a week before the origin: the last value, for a median of a few days adds their noise to
    the forecast's own (per organisation, so that their sum reserves half a cluster that nobody asks for)."""
    found = last_value(filled, origins, horizon_h)
    for column, origin in enumerate(origins.tolist()):
        starts = np.arange(origin - DAY_H, max(-1, origin - MONTH_H - 1), -DAY_H)
        if len(starts) >= CHANGE_DAYS_MIN:
            ahead = starts[:, None] + np.arange(1, horizon_h + 1)
            changes = filled[:, ahead] - filled[:, starts, None]
            found[:, column] += np.median(changes, axis=1)
    return np.maximum(found, 0.0)
