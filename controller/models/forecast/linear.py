"""OrgLinear (GFS, section 3.2) evaluated: two linear maps for the mean, one for the spread, from plain
weights.

Rule: the answers are those of the torch module it was trained as, to 1e-4; a test compares them. Our choices,
where the paper is silent: inputs are the differences from the last value over the series' own deviation; the
hour, weekday and holiday are those of the first hour ahead; the moving average of 25 hours is padded by
reflection. What attention makes of an organisation's attributes does not depend on time, so the weights hold
its result.
"""

from __future__ import annotations

from statistics import NormalDist

import msgspec
import numpy as np

from cotenant.controller.models.forecast.demand import DAY_H, Calendar, Floats, Hours

Table = tuple[tuple[float, ...], ...]


class LinearWeights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="linear"):
    """The weights of one training. A map has one row per hour ahead: weights of the input, of the
    organisation, of the calendar, and the bias."""

    input_h: int
    kernel_h: int
    deviations: tuple[float, ...]
    """Standard deviation of each series, in GPUs."""
    organisations: Table
    """Per series: what attention made of its attributes."""
    by_hour: Table
    by_weekday: Table
    by_holiday: Table
    cycle: Table
    trend: Table
    spread: Table
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

    def _calendars(self) -> tuple[Table, Table, Table]:
        return self.by_hour, self.by_weekday, self.by_holiday


def moving_average(inputs: Floats, kernel_h: int) -> Floats:
    """The trend: over `kernel_h` hours around each, the ends padded by reflection. Over the last axis."""
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
    """Of one series (its number in the weights), in GPUs: a row per origin, a column per hour ahead. The
    spread is a standard deviation; None where the model has none."""
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
    mean = _mapped(inputs - trend, context, weights.cycle) + _mapped(trend, context, weights.trend)
    if not weights.spread:
        return last + deviation * mean, None
    raised = _mapped(inputs, context, weights.spread)
    return last + deviation * mean, deviation * np.logaddexp(0.0, raised)


def _mapped(inputs: Floats, context: Floats, table: Table) -> Floats:
    mapped: Floats = np.hstack((inputs, context)) @ np.array(table).T
    return mapped


def gaussian(mean: Floats, spread: Floats, levels: tuple[float, ...]) -> Floats:
    """Quantiles of a normal distribution; the levels are the last axis."""
    deviates = np.array([NormalDist().inv_cdf(level) for level in levels])
    found: Floats = mean[..., None] + spread[..., None] * deviates
    return found
