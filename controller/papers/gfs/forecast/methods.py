"""How the next hours follow from those before: without training, by linear maps, and what trees are given.

Rule: nothing after the origin is seen. `filled[i, t]` is the demand of series i in hour t, without gaps.

The one without training stands in until there is a trained one. Its answer has one row per series, one per
origin, and one per hour ahead (1, 2, ... of them).

What the quantile trees see has no names: all values are differences from the last one, in units of the
series' own hourly change. So one forest serves any number of series, whatever their order and size, also
those it has never seen. What lies before the first hour is missing (NaN), never 0.

OrgLinear (GFS, section 3.2) has two linear maps for the mean and one for the spread, from plain weights. The
answers are those of the torch module it was trained as, to 1e-4; a test compares them. Our choices, where the
paper is silent: inputs are the differences from the last value over the series' own deviation; the hour,
weekday and holiday are those of the first hour ahead; the moving average of 25 hours is padded by reflection.
What attention makes of an organisation's attributes does not depend on time, so the weights hold its result.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cotenant.controller.papers.gfs.forecast.demand import DAY_H, MONTH_H, WEEK_H, Calendar, Floats, Hours

CHANGE_DAYS_MIN = 7


def last_value(filled: Floats, origins: Hours, horizon_h: int) -> Floats:
    return np.repeat(filled[:, origins, None], horizon_h, axis=2)


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


WeightTable = tuple[tuple[float, ...], ...]


class LinearWeights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="linear"):
    """The weights of one training. A map has one row per hour ahead: weights of the input, of the
    organisation, of the calendar, and the bias."""

    input_h: int
    kernel_h: int
    deviations: tuple[float, ...]
    """Standard deviation of each series, in GPUs."""
    organisations: WeightTable
    """Per series: what attention made of its attributes."""
    by_hour: WeightTable
    by_weekday: WeightTable
    by_holiday: WeightTable
    cycle: WeightTable
    trend: WeightTable
    spread: WeightTable
    """Empty for DLinear, which has none."""

    def __post_init__(self) -> None:
        rows = (len(self.by_hour), len(self.by_weekday), len(self.by_holiday))
        if rows != (DAY_H, 7, 2):
            raise ValueError(f"a calendar has 24 hours, 7 days and 2 kinds of days, not {rows}")
        if not self.deviations or len(self.organisations) != len(self.deviations):
            raise ValueError("each series needs a deviation and a row of its organisation")
        if not all(0 < each < np.inf for each in self.deviations):
            raise ValueError("a deviation must be positive")
        if not 1 <= self.kernel_h // 2 < self.input_h or self.kernel_h % 2 == 0:
            raise ValueError(f"a kernel of {self.kernel_h} h does not fit an input of {self.input_h} h")
        context = sum(len(table[0]) for table in (self.organisations, *self._calendars()))
        width = self.input_h + context + 1
        for name, table in (("cycle", self.cycle), ("trend", self.trend), ("spread", self.spread)):
            if any(len(row) != width for row in table):
                raise ValueError(f"`{name}` must have {width} weights per hour ahead")
        if not self.cycle or len(self.trend) != len(self.cycle):
            raise ValueError("`cycle` and `trend` must have a row per hour ahead")
        if self.spread and len(self.spread) != len(self.cycle):
            raise ValueError("`spread` must have a row per hour ahead, or none")
        for table in (*self._calendars(), self.organisations):
            if len({len(row) for row in table}) != 1:
                raise ValueError("rows of one table differ in length")

    def _calendars(self) -> tuple[WeightTable, WeightTable, WeightTable]:
        return self.by_hour, self.by_weekday, self.by_holiday


def moving_average(inputs: Floats, kernel_h: int) -> Floats:
    """The trend of `inputs`: the average over `kernel_h` hours around each hour, the ends padded by
    reflection. The hours are the last axis."""
    half = kernel_h // 2
    width = [(0, 0)] * (inputs.ndim - 1) + [(half, half)]
    padded = np.pad(inputs, width, mode="reflect")
    sums = np.cumsum(np.concatenate((np.zeros((*padded.shape[:-1], 1)), padded), axis=-1), axis=-1)
    average: Floats = (sums[..., kernel_h:] - sums[..., :-kernel_h]) / kernel_h
    return average


def windows(series: Floats, origins: Hours, input_h: int) -> Floats:
    """The inputs before and at each origin; what lies before the first hour is the first value."""
    places = origins[:, None] + np.arange(1 - input_h, 1)
    found: Floats = series[np.maximum(places, 0)]
    return found


def mean_and_spread(
    weights: LinearWeights, series: int, filled: Floats, origins: Hours, calendar: Calendar
) -> tuple[Floats, Floats | None]:
    """The mean and the spread of one series (its number in the weights), in GPUs: a row per origin, a column
    per hour ahead. The spread is a standard deviation; None where the model has none."""
    deviation, last = weights.deviations[series], filled[origins][:, None]
    inputs = (windows(filled, origins, weights.input_h) - last) / deviation
    trend = moving_average(inputs, weights.kernel_h)
    first = origins + 1
    context = np.hstack(
        (
            np.repeat([weights.organisations[series]], len(origins), axis=0),
            np.array(weights.by_hour)[calendar.hour_of_day(first)],
            np.array(weights.by_weekday)[calendar.weekday(first)],
            np.array(weights.by_holiday)[calendar.holiday(first)],
            np.ones((len(origins), 1)),
        )
    )
    mean = _mapped_inputs(inputs - trend, context, weights.cycle) + _mapped_inputs(
        trend, context, weights.trend
    )
    if not weights.spread:
        return last + deviation * mean, None
    raised = _mapped_inputs(inputs, context, weights.spread)
    return last + deviation * mean, deviation * np.logaddexp(0.0, raised)


def _mapped_inputs(inputs: Floats, context: Floats, table: WeightTable) -> Floats:
    mapped: Floats = np.hstack((inputs, context)) @ np.array(table).T
    return mapped


def gaussian(mean: Floats, spread: Floats, levels: tuple[float, ...]) -> Floats:
    """Quantiles of a normal distribution; the levels are the last axis."""
    deviates = np.array([NormalDist().inv_cdf(level) for level in levels])
    found: Floats = mean[..., None] + spread[..., None] * deviates
    return found
