"""Hourly demand: GPUs by organisation (or by pool of one GPU type) and hour, and the calendar of those hours.

Rule: a missing hour is missing, never 0. Where a model needs a number in its place it takes the last one
known; such an hour is no truth: nothing is trained on it, no error is counted for it.

Hours are whole numbers. Where dates are known they are counted from 1970-01-01 00:00, otherwise from a
midnight; then the weekday is only a day of some week, and there are no holidays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Hours = NDArray[np.int64]

DAY_H: Final = 24
WEEK_H: Final = 168
MONTH_H: Final = 672
"""Four weeks: the paper's input, and how long errors are remembered."""
TOTAL: Final = "total"
TOTAL_KNOWN_MIN: Final = 0.9
"""The least known share of a total's GPUs; the last known value stands in for the rest."""
_THURSDAY: Final = 3
"""The weekday of 1970-01-01, Monday being 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """`values[i, j]`: the GPUs that series i asked for in hour `first_hour + j`; NaN where that is
    unknown."""

    names: tuple[str, ...]
    values: Floats
    first_hour: int = 0
    dated: bool = False
    """Whether `first_hour` counts from 1970."""

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[0] != len(self.names) or not self.names:
            raise ValueError(f"{len(self.names)} series do not belong to values of shape {self.values.shape}")
        if len(set(self.names)) != len(self.names):
            raise ValueError("two series have one name")
        if np.isinf(self.values).any() or (self.values < 0).any():
            raise ValueError("demand is a number of GPUs, 0 or more")

    @property
    def hours(self) -> int:
        return int(self.values.shape[1])

    def known_mask(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = np.isfinite(self.values)
        return known

    def fill_gaps(self) -> Floats:
        """The values without gaps: the last known value stands in; before the first known value, that one; 0
        where none is known."""
        known = self.known_mask()
        at = np.maximum.accumulate(np.where(known, np.arange(self.hours), -1), axis=1)
        at = np.where(at < 0, known.argmax(axis=1)[:, None], at)
        filled: Floats = np.nan_to_num(np.take_along_axis(self.values, at, axis=1))
        return filled

    def first(self, hours: int) -> Demand:
        return Demand(
            names=self.names, values=self.values[:, :hours], first_hour=self.first_hour, dated=self.dated
        )

    def demand_with_total(self) -> Demand:
        """Returns the demand with the sum over the series as one more series, unless there is only one. An
        hour of which less than TOTAL_KNOWN_MIN is known has no sum (with hundreds of series something is
        always missing). Where no hour has a sum, there is no total."""
        if len(self.names) == 1 or TOTAL in self.names:
            return self
        filled, known = self.fill_gaps(), self.known_mask()
        total = filled.sum(axis=0)
        enough = np.where(known, filled, 0.0).sum(axis=0) >= TOTAL_KNOWN_MIN * total
        enough &= known.any(axis=0)
        if not enough.any():
            return self
        return Demand(
            names=(*self.names, TOTAL),
            values=np.vstack((self.values, np.where(enough, total, np.nan))),
            first_hour=self.first_hour,
            dated=self.dated,
        )


@dataclass(frozen=True, slots=True)
class Calendar:
    """What is special about an hour."""

    first_hour: int = 0
    dated: bool = False
    holidays: frozenset[int] = frozenset()
    """Days, counted from 1970-01-01."""

    @classmethod
    def make(cls, demand: Demand, holidays: Iterable[int] = ()) -> Calendar:
        return cls(demand.first_hour, demand.dated, frozenset(holidays) if demand.dated else frozenset())

    def hour_of_day(self, at: Hours) -> Hours:
        """The hour of the day at each place. `at`: places in the values of the demand, which may lie beyond
        its end."""
        return (at + self.first_hour) % DAY_H

    def weekday(self, at: Hours) -> Hours:
        return ((at + self.first_hour) // DAY_H + _THURSDAY * self.dated) % 7

    def holiday(self, at: Hours) -> Hours:
        """1 on a holiday."""
        days = (at + self.first_hour) // DAY_H
        return np.isin(days, np.fromiter(sorted(self.holidays), np.int64)).astype(np.int64)
