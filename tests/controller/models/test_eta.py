"""Lengths are drawn from their bucket and beyond what was had; intervals are shifted by their own errors."""

from __future__ import annotations

import math
from operator import sub
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import EtaInterval, ToldInterval
from cotenant.controller.models.eta import (
    ENOUGH,
    ERRORS_KEPT,
    LENGTHS_KEPT,
    EtaError,
    KnownLength,
    Pools,
    calibrated_interval,
    end_after,
    end_moved,
    errors_of,
    interval_of,
    levelwise,
)
from cotenant.controller.models.eta_score import score
from cotenant.controller.models.lengths import Lengths, left_of_spread_s, strata

TIMES = st.floats(min_value=1.0, max_value=1e7)
PARTS = st.lists(st.floats(min_value=0.0, max_value=1.0), min_size=1, max_size=12)


def pools(*seen: tuple[str, float, float]) -> Pools:
    made = Pools()
    for source, told_s, true_s in seen:
        made.add_length(KnownLength(source, told_s, true_s))
        made.add_run_time(true_s)
    return made


def error(log_error: float, *, was_calibrated: bool = True, hit: bool = True) -> EtaError:
    return EtaError(
        finish=(log_error, log_error, log_error),
        was_calibrated=was_calibrated,
        hit=hit,
        bias=log_error,
        width_s=50.0,
        actual_s=100.0,
    )


def test_a_length_is_drawn_from_jobs_that_were_expected_to_be_about_as_long() -> None:
    short = [("user", 10.0, 40.0)] * 80
    long = [("user", 1e5, 0.5e5)] * 80
    lengths = Lengths(pools(*short, *long))
    assert lengths.left_s("user", 12.0, 0.0, [0.0, 0.5, 1.0]) == pytest.approx([48.0] * 3)
    assert lengths.left_s("user", 9e4, 0.0, [0.0, 0.5, 1.0]) == pytest.approx([4.5e4] * 3)


def test_a_source_is_judged_by_its_own_record_where_it_has_one() -> None:
    lengths = Lengths(pools(*[("user", 100.0, 300.0)] * 40, *[("measured", 100.0, 101.0)] * 40))
    assert lengths.left_s("measured", 100.0, 0.0, [0.5]) == pytest.approx([101.0])
    assert lengths.left_s("profile", 100.0, 0.0, [0.0, 1.0]) == pytest.approx([101.0, 300.0])


@pytest.mark.parametrize(
    ("name", "lengths", "source"),
    [
        ("measured", Lengths(Pools()), "measured"),
        ("exact in a simulation", Lengths(Pools(), is_exact=True), "user"),
        ("measured, beside a few jobs of users", Lengths(pools(("user", 100.0, 400.0))), "measured"),
    ],
)
def test_without_a_record_what_is_no_guess_is_taken_at_its_word(
    name: str, lengths: Lengths, source: str
) -> None:
    assert lengths.left_s(source, 100.0, 30.0, [0.1, 0.9]) == [70.0, 70.0], name


def test_before_any_outcome_what_a_user_said_may_be_wrong_by_a_factor_either_way() -> None:
    low_s, mid_s, high_s = Lengths(Pools()).left_s("user", 100.0, 0.0, [0.1, 0.5, 0.9])
    assert mid_s == pytest.approx(100.0)
    # A lognormal factor with sigma 0.7: a tenth below 0.41, a tenth above 2.45.
    assert low_s == pytest.approx(40.8, rel=0.1)
    assert high_s == pytest.approx(245.0, rel=0.1)


def test_outcomes_take_the_place_of_what_was_assumed_one_by_one() -> None:
    widths_s = []
    for known in range(ENOUGH + 1):
        lengths = Lengths(pools(*[("user", 100.0, 110.0)] * known))
        low_s, high_s = lengths.left_s("user", 100.0, 0.0, [0.1, 0.9])
        widths_s.append(high_s - low_s)
    assert widths_s[-1] == 0.0
    assert widths_s[0] > 100.0
    assert widths_s[5] > widths_s[10] > widths_s[-1]


def test_other_sources_do_not_narrow_what_is_said_of_jobs() -> None:
    lengths = Lengths(pools(*[("measured", 100.0, 100.0)] * 40))
    low_s, high_s = lengths.left_s("user", 100.0, 0.0, [0.1, 0.9])
    assert high_s - low_s > 100.0


@given(st.integers())
@settings(max_examples=10)
def test_the_first_jobs_of_users_who_err_as_assumed_end_within_the_interval(seed: int) -> None:
    """As often as p10 to p90 says, from nothing known to all but enough."""
    random = Random(seed)

    def true_s() -> float:
        return 100.0 * random.lognormvariate(0.0, 0.7)

    hits = many = 0
    for known in range(ENOUGH):
        for _ in range(30):
            lengths = Lengths(pools(*[("user", 100.0, true_s()) for _ in range(known)]))
            told = interval_of(lengths.left_s("user", 100.0, 0.0, strata(random, 12)))
            assert told is not None
            hits += sum(told.holds(true_s()) for _ in range(20))
            many += 20
    assert 0.73 < hits / many < 0.87, f"seed {seed}: {hits / many}"


def test_what_a_job_has_had_rules_out_what_is_shorter() -> None:
    lengths = Lengths(pools(*[("user", 100.0, 50.0)] * 30, *[("user", 100.0, 200.0)] * 30))
    assert lengths.left_s("user", 100.0, 60.0, [0.0, 0.5, 1.0]) == pytest.approx([140.0] * 3)


def test_a_job_that_has_outlived_everything_goes_on_as_long_again_half_of_the_time() -> None:
    lengths = Lengths(pools(*[("user", 100.0, 50.0)] * 30))
    low, mid, high = lengths.left_s("user", 100.0, 1000.0, [0.1, 0.5, 0.99])
    assert mid == pytest.approx(1000.0)
    assert 0.0 < low < mid < high < 1e4


def test_of_a_job_of_which_nothing_is_expected_there_is_no_end_until_others_are_known() -> None:
    assert Lengths(pools(*[("user", 1.0, 2.0)] * (ENOUGH - 1))).left_of_unknown_s(0.0, [0.5]) == [math.inf]
    known = Lengths(pools(*[("user", 1.0, 2.0 + n) for n in range(ENOUGH)]))
    assert known.left_of_unknown_s(0.0, [0.0, 1.0]) == [2.0, 16.0]


@given(st.lists(st.tuples(TIMES, TIMES), max_size=60), TIMES, st.floats(min_value=0.0, max_value=1e7), PARTS)
@settings(max_examples=80)
def test_something_is_always_left_and_more_of_it_higher_up(
    seen: list[tuple[float, float]], told_s: float, had_s: float, parts: list[float]
) -> None:
    lengths = Lengths(pools(*[("user", *pair) for pair in seen]))
    left_s = lengths.left_s("user", told_s, had_s, sorted(parts))
    assert all(each > 0.0 for each in left_s)
    assert left_s == sorted(left_s)


@given(st.integers(min_value=1, max_value=40), st.integers())
@settings(max_examples=30)
def test_few_draws_see_the_whole_of_a_distribution(count: int, seed: int) -> None:
    places = strata(Random(seed), count)
    assert sorted(int(place * count) for place in places) == list(range(count))
    assert places == strata(Random(seed), count)


def test_an_interval_has_no_median_where_half_of_the_roll_outs_have_no_end() -> None:
    assert interval_of([1.0, 2.0, math.inf, math.inf]) is None
    assert interval_of([]) is None
    found = interval_of([1.0, 2.0, 3.0, 4.0, 5.0, math.inf])
    assert found is not None
    assert (found.p50_s, found.p90_s) == (3.5, math.inf)


def test_too_few_errors_shift_nothing() -> None:
    raw = EtaInterval(10.0, 20.0, 40.0)
    assert calibrated_interval(raw, [(1.0, 1.0, 1.0)] * (ENOUGH - 1)) is raw


def test_a_steady_error_is_taken_out_whole() -> None:
    told = calibrated_interval(EtaInterval(10.0, 20.0, 40.0), [(math.log(2.0),) * 3] * ENOUGH)
    assert [told.p10_s, told.p50_s, told.p90_s] == pytest.approx([20.0, 40.0, 80.0])


def test_a_bound_without_an_end_says_nothing_and_keeps_none() -> None:
    told = calibrated_interval(EtaInterval(10.0, 20.0, math.inf), [(0.0, 0.0, math.nan)] * 20)
    assert told == EtaInterval(10.0, 20.0, math.inf)


LOGS = st.floats(-9.0, 9.0)
SAMPLES = st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.01, 1e6)), min_size=4, max_size=12)


@given(SAMPLES, st.floats(0.0, 1e5), st.tuples(LOGS, LOGS, LOGS), st.tuples(LOGS, LOGS, LOGS))
def test_no_correction_goes_below_the_floor_or_puts_an_end_before_its_start(
    samples: list[tuple[float, float]],
    floor_s: float,
    of_starts: tuple[float, float, float],
    of_ends: tuple[float, float, float],
) -> None:
    """`samples`: of each roll-out the wait after the floor, and how long the job then ran."""
    raw_start = interval_of([floor_s + wait_s for wait_s, _ in samples])
    raw_end = interval_of([floor_s + wait_s + run_s for wait_s, run_s in samples])
    assert raw_start is not None and raw_end is not None
    told = calibrated_interval(raw_start, [of_starts] * ENOUGH, floor_s)
    start = ToldInterval(raw_start, told, floor_s)
    end = ToldInterval(raw_end, calibrated_interval(raw_end, [of_ends] * ENOUGH, floor_s), floor_s)
    corrected = end_after(end, start.told, min(run_s for _, run_s in samples))
    moved = end_moved(raw_end, start)
    for interval in (start.told, corrected, moved):
        levels = msgspec.structs.astuple(interval)
        assert list(levels) == sorted(levels)
        assert min(levels) >= floor_s * (1.0 - 1e-9)
    for interval in (corrected, moved):
        assert all(each >= 0.0 for each in msgspec.structs.astuple(levelwise(sub, interval, start.told)))


@given(st.floats(0.0, 1e5), LOGS.filter(lambda log: abs(log) > 0.1))
def test_what_lies_beyond_the_floor_is_scaled_and_its_error_is_what_scales_it(
    floor_s: float, log: float
) -> None:
    raw = EtaInterval(floor_s + 10.0, floor_s + 20.0, floor_s + 40.0)
    told = calibrated_interval(raw, [(log,) * 3] * ENOUGH, floor_s)
    widths_s = [each - floor_s for each in msgspec.structs.astuple(told)]
    assert widths_s == pytest.approx([wide_s * math.exp(log) for wide_s in (10.0, 20.0, 40.0)], rel=1e-3)
    if told.p50_s - floor_s > 1.0:
        assert errors_of(raw, told.p50_s, floor_s)[1] == pytest.approx(log, abs=1e-3)


@pytest.mark.parametrize("had_s", [0.0, 30.0, 5_000.0])
def test_what_is_left_of_a_length_with_a_spread_has_its_quantiles_beyond_what_was_had(had_s: float) -> None:
    left_s = left_of_spread_s(20.0, 100.0, 800.0, had_s, [0.1, 0.5, 0.9])
    assert 0.0 < left_s[0] < left_s[1] < left_s[2]
    if not had_s:
        assert left_s == pytest.approx([20.0, 100.0, 800.0], rel=0.1)


@given(st.integers())
@settings(max_examples=10)
def test_what_is_told_holds_as_often_as_it_says_whatever_the_raw_interval_was(seed: int) -> None:
    """Errors that come from one distribution: 80 % of the next ones lie within, give or take."""
    random = Random(seed)
    raw = EtaInterval(90.0, 100.0, 110.0)
    past = [errors_of(raw, 100.0 * random.lognormvariate(0.5, 1.0)) for _ in range(300)]
    told = calibrated_interval(raw, past)
    hits = sum(told.holds(100.0 * random.lognormvariate(0.5, 1.0)) for _ in range(2000)) / 2000
    assert 0.7 < hits < 0.9, f"seed {seed}: {hits}"


def test_pools_keep_the_newest_and_a_policy_its_own() -> None:
    made = Pools()
    for number in range(LENGTHS_KEPT + 5):
        made.add_length(KnownLength("user", 1.0, float(number)))
    for number in range(ERRORS_KEPT + 5):
        made.add_error("srtf", "submission", error(float(number)))
    made.add_error("srtf", "revisit", error(-1.0))
    assert (len(made.lengths), made.lengths[0].true_s) == (LENGTHS_KEPT, 5.0)
    assert [each.bias for each in made.errors_of("srtf", "submission")[:2]] == [5.0, 6.0]
    assert [each.bias for each in made.errors_of("srtf", "revisit")] == [-1.0]
    assert made.errors_of("fifo", "submission") == []


def test_only_what_was_calibrated_is_scored() -> None:
    early = [error(3.0, was_calibrated=False, hit=False)] * 4
    scored = score([*early, error(0.0), error(math.log(2.0), hit=False), error(math.log(0.5))])
    assert (scored.predictions, scored.uncalibrated) == (3, 4)
    assert scored.coverage_80 == pytest.approx(2 / 3)
    assert (scored.median_bias, scored.median_abs_error) == (0.0, 0.5)
    assert scored.width_over_jct == 0.5
    assert score([]).coverage_80 is None
    assert score([error(0.0)] * 9, last=5).predictions == 5
