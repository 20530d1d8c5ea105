"""Numerics of the forecasts: against plain loops and references, and what must hold for any demand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.papers.gfs.forecast.demand import Calendar, Demand
from cotenant.controller.papers.gfs.forecast.errors import (
    correction,
    enough,
    order_quantiles,
)
from cotenant.controller.papers.gfs.forecast.methods import (
    COLUMNS,
    gaussian,
    last_change,
    moving_average,
    rows_of,
    units,
    windows,
)
from tests.controller.demands import rhythmic

# --- Demand and calendar -----------------------------------------------------------------------------


def demand(*rows: list[float]) -> Demand:
    return Demand(names=tuple("abcdefgh"[: len(rows)]), values=np.array(rows, np.float64))


def test_a_missing_hour_takes_the_last_known_value_and_stays_missing() -> None:
    nan = math.nan
    sparse = demand([nan, 3.0, nan, nan, 5.0], [0.0, nan, 2.0, 2.0, nan])
    assert sparse.fill_gaps().tolist() == [[3.0, 3.0, 3.0, 3.0, 5.0], [0.0, 0.0, 2.0, 2.0, 2.0]]


def test_the_total_of_an_hour_is_known_where_nearly_all_of_it_is() -> None:
    nan = math.nan
    total = demand([nan, 95.0, 95.0, nan], [10.0, nan, 3.0, 4.0]).demand_with_total()
    assert total.names == ("a", "b", "total")
    assert [None if math.isnan(each) else each for each in total.values[2]] == [None, 105.0, 98.0, None]
    assert total.demand_with_total() is total


def test_without_any_hour_in_common_there_is_no_total() -> None:
    assert demand([math.nan, 5.0], [5.0, math.nan]).demand_with_total().names == ("a", "b")


def test_one_series_is_its_own_total() -> None:
    assert demand([1.0, 2.0]).demand_with_total().names == ("a",)


def test_a_series_that_has_not_begun_has_no_demand() -> None:
    assert demand([math.nan, math.nan], [1.0, 2.0]).fill_gaps().tolist() == [[0.0, 0.0], [1.0, 2.0]]


@pytest.mark.parametrize("values", [[[1.0, -0.5]], [[1.0, math.inf]]])
def test_what_is_no_demand_is_refused(values: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="demand"):
        Demand(names=("a",), values=np.array(values))


def test_the_calendar_of_a_known_day() -> None:
    """2024-10-01, a Tuesday and the first day of a week of holidays in China, is day 19,997."""
    calendar = Calendar(19_997 * 24, True, frozenset((19_997,)))
    at = np.array([-1, 0, 23, 24])
    assert calendar.hour_of_day(at).tolist() == [23, 0, 23, 0]
    assert calendar.weekday(at).tolist() == [0, 1, 1, 2]
    assert calendar.holiday(at).tolist() == [0, 1, 1, 0]


def test_without_dates_there_are_no_holidays() -> None:
    assert Calendar.make(demand([1.0, 2.0]), (0, 1)).holiday(np.arange(48)).sum() == 0


# --- Before there is a model -------------------------------------------------------------------------


@pytest.mark.parametrize("days", [0, 1, 3, 6])
def test_before_a_week_is_known_the_change_is_none(days: int) -> None:
    """A median of a few days' changes is their noise: each organisation's adds to what is reserved."""
    hours = 24 * days + 10
    assert last_change(np.arange(float(hours))[None], np.array([hours - 1]), 2).tolist() == [
        [[hours - 1.0, hours - 1.0]]
    ]


def test_once_a_week_is_known_the_change_of_the_hour_counts() -> None:
    filled, origins = np.arange(24.0 * 8)[None], np.array([24 * 7])
    assert last_change(filled, origins, 2).tolist() == [[[24 * 7 + 1.0, 24 * 7 + 2.0]]]


# --- Rows of the trees -------------------------------------------------------------------------------


def test_rows_do_not_look_ahead_and_know_no_level(seed: int) -> None:
    series = rhythmic(900, seed).fill_gaps()[0]
    origins, calendar = np.array([40, 500, 800]), Calendar()
    rows = rows_of(series, origins, 4, calendar)
    assert rows.shape == (12, COLUMNS)
    changed = series.copy()
    changed[801:] = 0.0
    assert np.array_equal(rows_of(changed, origins, 4, calendar), rows, equal_nan=True)
    # Ten times the demand is the same to the trees; of a shift only the size (the last column) is seen.
    assert np.allclose(rows_of(10 * series, origins, 4, calendar), rows, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_the_first_hours_have_missing_values_not_zeros(seed: int) -> None:
    rows = rows_of(rhythmic(100, seed).fill_gaps()[0], np.array([0, 30]), 1, Calendar())
    assert np.isnan(rows[0, :16]).all()
    assert np.isnan(rows[1]).any()
    assert not np.isnan(rows[1, :9]).any()


def test_units_are_the_mean_hourly_change() -> None:
    series = np.array([0.0, 2.0, 1.0, 5.0])
    assert units(series, np.array([1, 3])).tolist() == pytest.approx([2.0, 7.0 / 3])
    assert units(np.zeros(5), np.array([4])).tolist() == [0.01]
    long = rhythmic(1500, 1).fill_gaps()[0]
    assert units(long, np.array([1400]))[0] == pytest.approx(np.abs(np.diff(long[1400 - 672 : 1401])).mean())


# --- Decomposition and quantiles ---------------------------------------------------------------------


def test_the_moving_average_is_padded_by_reflection(seed: int) -> None:
    inputs = np.random.default_rng(seed).normal(size=(3, 60))
    padded = np.pad(inputs, ((0, 0), (12, 12)), mode="reflect")
    plain = [[row[at : at + 25].mean() for at in range(60)] for row in padded]
    assert np.allclose(moving_average(inputs, 25), plain)
    assert padded[0, :12].tolist() == inputs[0, 12:0:-1].tolist(), "the end itself is not repeated"


def test_windows_end_at_their_origin() -> None:
    series = np.arange(10.0)
    assert windows(series, np.array([1, 9]), 4).tolist() == [[0.0, 0.0, 0.0, 1.0], [6.0, 7.0, 8.0, 9.0]]


def test_gaussian_quantiles() -> None:
    found = gaussian(np.array([[10.0]]), np.array([[2.0]]), (0.5, 0.9, 0.95))
    assert found.ravel().tolist() == pytest.approx([10.0, 12.5631, 13.2897], abs=1e-4)


# --- Errors as they are observed ---------------------------------------------------------------------


def test_the_correction_is_the_conformal_rank() -> None:
    errors = np.arange(1.0, 11.0)
    assert correction(errors, 0.9) == 10.0  # ceil(11 * .9) = 10.
    assert correction(errors, 0.5) == 6.0
    assert correction(errors, 0.95) == 10.0
    assert (enough(10, 0.9), enough(10, 0.95)) == (True, False)
    assert correction(np.empty(0), 0.9) == 0.0


@given(st.lists(st.lists(st.floats(-100, 100), min_size=4, max_size=4), min_size=1, max_size=10))
def test_quantiles_neither_cross_nor_fall_below_zero(rows: list[list[float]]) -> None:
    found = order_quantiles(np.array(rows), (0.5, 0.8, 0.9, 0.95))
    assert (np.diff(found, axis=-1) >= 0).all()
    assert (found >= 0).all()
