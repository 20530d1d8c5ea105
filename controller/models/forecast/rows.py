"""What the quantile trees see of a series at an origin, for each hour ahead.

Rule: nothing after the origin, and no name: all values are differences from the last one, in units of the
series' own hourly change. So one forest serves any number of series, whatever their order and size, also
those it has never seen. What lies before the first hour is missing (NaN), never 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cotenant.controller.models.forecast.demand import DAY_H, MONTH_H, WEEK_H, Calendar, Floats, Hours

Rows = npt.NDArray[np.float32]

LAGS_H: Final = (1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, 72, 96, 120, 144, 168)
MEANS_H: Final = (6, DAY_H, WEEK_H, MONTH_H)
DAYS: Final = 28
"""How many days back the same hours are features."""
SINGLE_DAYS: Final = (1, 2, 3, 7, 14)
MEDIANS_OF: Final = (7, 14, DAYS)
WEEKS: Final = (7, 14, 21, 28)
COLUMNS: Final = len(LAGS_H) + len(MEANS_H) + len(SINGLE_DAYS) + len(MEDIANS_OF) + 7
HORIZON_H_MAX: Final = DAY_H
LEVEL_SHARE_MIN: Final = 0.002
"""The smallest unit of a series that hardly changes, as a share of its level."""
UNIT_MIN: Final = 0.01
"""The smallest unit of a series without demand, in GPUs."""


def units(series: Floats, origins: Hours) -> Floats:
    """The mean hourly change over the last four weeks, per origin. `series`: without gaps."""
    change = np.concatenate(([0.0, 0.0], np.cumsum(np.abs(np.diff(series)))))
    level = np.concatenate(([0.0], np.cumsum(series)))
    start = np.maximum(0, origins - MONTH_H)
    mean_change = (change[origins + 1] - change[start + 1]) / np.maximum(1, origins - start)
    mean_level = (level[origins + 1] - level[start]) / (origins + 1 - start)
    found: Floats = np.maximum(mean_change, np.maximum(LEVEL_SHARE_MIN * mean_level, UNIT_MIN))
    return found


def rows_of(series: Floats, origins: Hours, horizon_h: int, calendar: Calendar) -> Rows:
    """Shape (horizon_h * len(origins), COLUMNS): all origins for one hour ahead, then for two, and so on."""
    assert 1 <= horizon_h <= HORIZON_H_MAX, horizon_h
    unit, last = units(series, origins), series[origins]
    sums = np.concatenate(([0.0], np.cumsum(series)))
    fixed = [(_at(series, origins - lag) - last) / unit for lag in LAGS_H]
    for span in MEANS_H:
        start = np.maximum(0, origins + 1 - span)
        fixed.append(((sums[origins + 1] - sums[start]) / (origins + 1 - start) - last) / unit)
    size = np.log1p(last / unit)
    parts = []
    for ahead in range(1, horizon_h + 1):
        back = DAY_H * np.arange(1, DAYS + 1)[:, None]
        changes = (_at(series, origins + ahead - back) - _at(series, origins - back)) / unit
        target = origins + ahead
        columns = [
            *fixed,
            *(changes[day - 1] for day in SINGLE_DAYS),
            *(_median(changes[:days]) for days in MEDIANS_OF),
            _median(changes[[day - 1 for day in WEEKS]]),
            calendar.hour_of_day(target),
            calendar.weekday(target),
            calendar.holiday(target),
            calendar.holiday(target + DAY_H),
            np.full(len(origins), ahead),
            size,
        ]
        parts.append(np.column_stack(columns))
    found: Rows = np.concatenate(parts).astype(np.float32)
    assert found.shape[1] == COLUMNS, found.shape
    return found


def _at(series: Floats, places: Hours) -> Floats:
    """NaN before the first hour."""
    found: Floats = np.where(places >= 0, series[np.maximum(places, 0)], np.nan)
    return found


def _median(changes: Floats) -> Floats:
    """Over the days that are known; NaN where none is."""
    count = np.isfinite(changes).sum(axis=0)
    ranked = np.sort(changes, axis=0)  # NaN last.
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    pick = np.arange(changes.shape[1])
    middle: Floats = (ranked[low, pick] + ranked[np.minimum(high, len(ranked) - 1), pick]) / 2
    return np.where(count > 0, middle, np.nan)
