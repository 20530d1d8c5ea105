"""What a test of forecasts is judged by: plain loops and cases by hand, and naive forecasts beside them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.papers.gfs.forecast import WINDOW, last_change, last_value
from experiments.gfs.training.naive import Naive, last_week_peak, seasonal
from experiments.gfs.training.scores import pinball, rolling, scores
from tests.controller.demands import rhythmic


def test_naive_forecasts_of_a_day_that_repeats() -> None:
    day = np.concatenate((np.zeros(12), np.full(12, 10.0)))
    filled, origins = np.tile(day, 10)[None], np.array([24 * 8 + 10])
    assert last_value(filled, origins, 3).tolist() == [[[0.0, 0.0, 0.0]]]
    assert seasonal(filled, origins, 3).tolist() == [[[0.0, 10.0, 10.0]]]
    assert last_change(filled, origins, 3).tolist() == [[[0.0, 10.0, 10.0]]]
    assert last_week_peak(filled, origins, 3).tolist() == [[[10.0, 10.0, 10.0]]]


@pytest.mark.parametrize("function", [last_value, seasonal, last_change, last_week_peak])
def test_naive_forecasts_do_not_look_ahead(function: Naive, seed: int) -> None:
    filled = rhythmic(400, seed).fill_gaps()
    origins = np.array([5, 30, 200, 300])
    changed = filled.copy()
    changed[:, 301:] = 999.0
    assert np.array_equal(function(filled, origins, 4), function(changed, origins, 4))


# --- Errors as they are observed ---------------------------------------------------------------------


def test_an_error_counts_once_its_hour_was_seen() -> None:
    """At origin i the forecasts made up to i - h can be judged for h hours ahead."""
    errors = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert rolling(errors, 1, 0.99).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert rolling(errors, 3, 0.99).tolist() == [0.0, 0.0, 0.0, 1.0, 2.0]
    assert rolling(errors, 3, 0.99, np.array([9.0])).tolist() == [9.0, 9.0, 9.0, 9.0, 9.0]
    assert rolling(np.array([math.nan, 2.0, 3.0]), 1, 0.99).tolist() == [0.0, 0.0, 2.0]


def test_old_errors_are_forgotten() -> None:
    errors = np.concatenate((np.full(WINDOW, 100.0), np.ones(WINDOW + 1)))
    found = rolling(errors, 1, 0.9)
    assert (found[WINDOW], found[-1]) == (100.0, 1.0)


@settings(max_examples=30)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from((0.8, 0.9, 0.95)), st.integers(1, 6),
    st.sampled_from(("normal", "exponential", "standard_cauchy")),
)  # fmt: skip
def test_exchangeable_errors_are_covered(seed: int, level: float, ahead: int, kind: str) -> None:
    """Split conformal: the coverage of n + 1 exchangeable errors is at least the level, and hardly more."""
    drawn = np.random.default_rng(seed)
    errors = getattr(drawn, kind)(size=3000)
    found = rolling(errors, ahead, level)
    covered = float((errors <= found)[1000:].mean())
    assert level - 0.035 <= covered <= level + 0.035


# --- Scores ------------------------------------------------------------------------------------------


def test_scores_of_a_case_done_by_hand() -> None:
    truth = np.array([10.0, 0.0, 20.0, math.nan])
    found = scores(
        truth,
        np.array([8.0, 1.0, 20.0, 5.0]),
        np.array([12.0, 2.0, 19.0, 5.0]),
        np.array([12.0, 0.0, 25.0, 5.0]),
    )
    assert found.mae == pytest.approx(1.0)
    assert found.rmse == pytest.approx(math.sqrt(5 / 3))
    assert found.mape == pytest.approx(0.1)  # An hour without demand has no share.
    assert found.pinball_90 == pytest.approx((0.2 + 0.2 + 0.9) / 3)
    assert found.coverage_90 == pytest.approx(2 / 3)
    assert found.coverage_95 == 1.0


@given(
    st.lists(st.floats(0, 1000), min_size=2, max_size=40), st.floats(0.05, 0.95), st.floats(0, 1000)
)  # fmt: skip
def test_no_constant_has_a_lower_pinball_loss_than_the_quantile(
    values: list[float], level: float, other: float
) -> None:
    truth = np.array(values)
    best = float(np.quantile(truth, level, method="inverted_cdf"))
    loss, worse = (float(pinball(truth, np.array(q), level).mean()) for q in (best, other))
    assert loss <= worse + 1e-9 * (1 + worse)


def test_nothing_known_cannot_be_scored() -> None:
    nothing = np.array([math.nan])
    with pytest.raises(ValueError, match="no hour"):
        scores(nothing, nothing, nothing, nothing)
