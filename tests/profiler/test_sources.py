"""A window of samples against a reference that walks through time tick by tick; and indicators: what is
missing stays missing, and every value says where it came from.
"""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.profiler.indicators.sources import (
    ANEW,
    FIRST,
    LATE_RATIO,
    Counter,
    Fresh,
    Indicator,
    Reading,
    Window,
    missing,
)
from tests.building.samples import summarise

# --- Windows ---------------------------------------------------------------------------------------


PERIOD = 4
"""Ticks. The reference counts ticks; a tick is a second to the window."""
values = st.integers(-1000, 1000) | st.none()
samples = st.lists(st.tuples(values, st.integers(1, 20)), max_size=30)
Samples = list[tuple[int | None, int]]


def window_of(given_samples: Samples, *, gauge: bool = False) -> Window:
    window = Window()
    for value, lasted in given_samples:
        window.add(math.nan if value is None else float(value), float(lasted), float(PERIOD), gauge=gauge)
    return window


def ticks_of(given_samples: Samples, *, gauge: bool) -> list[int | None]:
    """Each tick of the window with the value that stands for it; a gauge's stand at its end."""
    ticks: list[int | None] = []
    for value, lasted in given_samples:
        stands = min(lasted, PERIOD) if gauge else lasted
        ticks += [None] * (lasted - stands) + [value] * stands
    return ticks


@given(samples, st.booleans())
def test_the_mean_is_that_of_every_tick_that_was_measured(given_samples: Samples, gauge: bool) -> None:
    stats = window_of(given_samples, gauge=gauge)
    ticks = ticks_of(given_samples, gauge=gauge)
    known = [tick for tick in ticks if tick is not None]
    if not known:
        assert math.isnan(stats.mean) and stats.count == 0
    else:
        assert stats.mean == pytest.approx(float(Fraction(sum(known), len(known))), abs=1e-9)


@given(samples, st.booleans())
def test_the_variance_is_that_of_the_samples_in_time(given_samples: Samples, gauge: bool) -> None:
    stats = window_of(given_samples, gauge=gauge)
    in_time = [(v, n) for v, n in given_samples if v is not None and n <= LATE_RATIO * PERIOD]
    if len(in_time) < 2:
        assert math.isnan(stats.variance)
        return
    ticks = [tick for tick in ticks_of(list(in_time), gauge=gauge) if tick is not None]
    mean = Fraction(sum(ticks), len(ticks))
    expected = sum((tick - mean) ** 2 for tick in ticks) / len(ticks)
    assert stats.variance == pytest.approx(float(expected), rel=1e-9, abs=1e-6)


@given(samples)
def test_every_sample_is_counted_once(given_samples: Samples) -> None:
    stats = window_of(given_samples)
    known = [lasted for value, lasted in given_samples if value is not None]
    assert stats.count == len(known)


@given(samples, st.randoms(use_true_random=False))
def test_the_order_does_not_matter(given_samples: Samples, random: object) -> None:
    shuffled = list(given_samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = window_of(given_samples), window_of(shuffled)
    assert one.mean == pytest.approx(other.mean, abs=1e-9, nan_ok=True)
    assert one.variance == pytest.approx(other.variance, rel=1e-9, abs=1e-6, nan_ok=True)


@given(st.floats(-1e6, 1e6), st.integers(2, 50))
def test_what_does_not_change_has_no_variance(value: float, count: int) -> None:
    window = Window()
    for _ in range(count):
        window.add(value, 0.1, 0.1)
    assert window.variance == 0.0
    assert window.mean == pytest.approx(value)


def test_a_late_gauge_is_not_spread_over_the_gap_before_it() -> None:
    window = Window()
    for value, lasted_s in ((1.0, 0.1), (0.0, 5.0)):
        window.add(value, lasted_s, 0.1, gauge=True)
    assert window.mean == pytest.approx(0.5)


def test_a_sample_that_took_no_time_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="a sample takes time"):
        Window().add(1.0, 0.0, 0.1)


# --- Counters ---------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 100), st.booleans()), max_size=30)


@given(steps)
def test_rates_add_up_to_what_was_counted_between_resets(given_steps: list[tuple[int, int, bool]]) -> None:
    """`True`: the counter was set back to nothing in that interval, after it had counted."""
    counter, count, at_s = Counter(), 0, 0.0
    known = math.isnan(counter.rate(0.0, 0.0))
    assert known and counter.why == FIRST
    for added, passed_s, is_reset in given_steps:
        before = count
        count = added if is_reset else count + added
        at_s += passed_s
        rate = counter.rate(float(count), at_s)
        if count < before:
            assert math.isnan(rate) and counter.why == ANEW
        else:
            assert rate >= 0.0 and rate * passed_s == pytest.approx(count - before)


def test_a_counter_without_a_value_starts_over() -> None:
    counter = Counter()
    counter.rate(1.0, 0.0)
    assert math.isnan(counter.rate(math.nan, 1.0)) and "no value" in counter.why
    assert math.isnan(counter.rate(50.0, 2.0)) and counter.why == FIRST
    assert counter.rate(60.0, 3.0) == 10.0


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), max_size=40))
def test_a_value_that_somebody_else_sampled_counts_once(given_values: list[tuple[float, int]]) -> None:
    fresh = Fresh()
    newest, taken = -1, 0
    for value, stamp in given_values:
        got = fresh.take(value, float(stamp))
        assert math.isnan(got) == (stamp <= newest)
        taken += not math.isnan(got)
        newest = max(newest, stamp)
    distinct: list[int] = []
    for _, stamp in given_values:
        if not distinct or stamp > distinct[-1]:
            distinct.append(stamp)
    assert taken == len(distinct)


def test_counters_that_take_turns_have_every_second_value_and_a_blank_first_one() -> None:
    fresh, window = Fresh(), Window()
    shown = [(math.nan, 0.0), (0.2, 1.0), (0.2, 1.0), (0.6, 3.0), (0.6, 3.0), (0.4, 5.0)]
    for value, stamp in shown:
        window.add(fresh.take(value, stamp), 1.0, 1.0, gauge=True)
    assert window.count == 3 and window.mean == pytest.approx(0.4)


# --- Indicators ------------------------------------------------------------------------------------


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
