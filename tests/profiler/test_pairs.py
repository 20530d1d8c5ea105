"""Pair observations: means over what was measured, the same from both sides."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.profiler.pairs import PairObservations, xi

RATIOS = st.lists(st.floats(0.9, 3.0), min_size=1, max_size=20)


@given(RATIOS)
def test_a_record_is_the_mean_of_its_observations(ratios: list[float]) -> None:
    pairs = PairObservations()
    for ratio in ratios:
        pairs.observe("digits", "sonnets", shared_step_s=ratio * 0.25, solo_step_s=0.25)
    record = pairs.of("digits", "sonnets")
    assert record is not None
    assert record.first_xi == pytest.approx(sum(ratios) / len(ratios))
    assert record.first_count == len(ratios)
    assert pairs.of("sonnets", "digits") == record.swapped()


def test_a_pair_needs_both_directions_before_a_policy_may_use_it() -> None:
    pairs = PairObservations()
    record = pairs.observe("b", "a", shared_step_s=3.0, solo_step_s=2.0)
    assert record.interference("observed") is None
    record = pairs.observe("a", "b", shared_step_s=1.9, solo_step_s=2.0)
    seen = record.interference("observed")
    assert seen is not None
    assert (seen.first, seen.second, seen.count, seen.source) == (1.0, 1.5, 1, "observed")
    assert record.first_xi == pytest.approx(0.95), "the record keeps what was measured"


def test_a_kind_beside_itself_has_one_ratio() -> None:
    record = PairObservations().observe("a", "a", shared_step_s=1.5, solo_step_s=1.0)
    assert (record.first_xi, record.second_xi) == (1.5, 1.5)


def test_records_survive_being_saved() -> None:
    pairs = PairObservations()
    pairs.observe("b", "a", shared_step_s=3.0, solo_step_s=2.0)
    record = PairObservations(pairs.records()).of("a", "b")
    assert record is not None
    assert (record.second_xi, record.second_count, record.first_count) == (1.5, 1, 0)
    assert math.isnan(record.first_xi), "not measured is not a number"


@pytest.mark.parametrize(("shared_s", "solo_s"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf)])
def test_a_ratio_without_two_step_times_is_refused(shared_s: float, solo_s: float) -> None:
    with pytest.raises(ValueError, match="two positive step times"):
        xi(shared_s, solo_s)
