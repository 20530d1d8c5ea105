"""Indicators: what is missing stays missing, and every value says where it came from."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.profiler.indicators.sources import Indicator, Reading, missing
from tests.building.samples import summarise

VALUES = st.lists(st.floats(0, 1e12), min_size=2, max_size=30)


def readings(values: list[float]) -> list[dict[Indicator, Reading]]:
    return [{Indicator.SMACT: Reading(value=value, source="cpu")} for value in values]


@given(VALUES)
def test_a_summary_is_mean_and_variance(values: list[float]) -> None:
    summary = summarise(readings(values), period_s=0.5)[Indicator.SMACT]
    assert summary.mean == pytest.approx(statistics.fmean(values))
    assert summary.variance == pytest.approx(statistics.pvariance(values), rel=1e-6, abs=1e-6)
    assert (summary.count, summary.source, summary.period_s) == (len(values), "cpu", 0.5)


@given(VALUES, st.integers(0, 10))
def test_a_missing_reading_is_never_a_zero(values: list[float], position: int) -> None:
    samples = readings(values)
    samples.insert(min(position, len(samples)), {Indicator.SMACT: missing("cpu", "the counter hung")})
    assert summarise(samples, 0.5) == summarise(readings(values), 0.5)


def test_what_was_never_measured_is_nan_with_the_reason() -> None:
    summary = summarise([{Indicator.TENSO: missing("cpu", "no such pipe")}] * 3, 0.5)[Indicator.TENSO]
    assert math.isnan(summary.mean)
    assert math.isnan(summary.variance)
    assert (summary.count, summary.reason) == (0, "no such pipe")


def test_one_sample_has_no_variance() -> None:
    summary = summarise(readings([0.5]), 0.5)[Indicator.SMACT]
    assert summary.mean == 0.5
    assert math.isnan(summary.variance)


def test_a_missing_value_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="reason"):
        Reading(value=math.nan, source="cpu")


def test_sources_are_never_mixed() -> None:
    mixed = [*readings([0.5]), {Indicator.SMACT: Reading(value=0.5, source="gpm")}]
    with pytest.raises(ValueError, match=r"one source.*cpu.*gpm"):
        summarise(mixed, 0.5)
