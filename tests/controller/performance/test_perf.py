"""The numbers of Castor's section 4 against brute force: pairs played step by step, every insertion time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cotenant.controller.performance.perf import (
    Interference,
    Profile,
    ProfilePoint,
    duty_cycle_rule,
    fit_step_model,
    memory_mib,
    modelled_from,
    modelled_points,
    pair_timing,
    part_share,
    shared_ends,
    step_s,
)
from tests.controller.building import profile

SECONDS = st.floats(0.1, 1e4)
XI = st.floats(1.0, 4.0)


def played(
    first_s: float, second_s: float, first_xi: float, second_xi: float, starts_s: float
) -> tuple[float, float]:
    """Two jobs step by step: the first begins at `starts_s`; while both run each makes 1/xi of its pace.

    A step is a hundredth of the whole; ends are hit exactly.
    """
    tick_s = (first_s + second_s + starts_s) / 100
    left, ends, now_s = [first_s, second_s], [0.0, 0.0], 0.0
    while min(ends) == 0.0:
        active = [i for i in (0, 1) if ends[i] == 0.0 and (i == 1 or now_s >= starts_s - 1e-12)]
        if not active:
            now_s = starts_s
            continue
        both = len(active) == 2
        pace = [1.0 / (first_xi if both else 1.0), 1.0 / (second_xi if both else 1.0)]
        span_s = min([tick_s, *(left[i] / pace[i] for i in active)])
        if now_s < starts_s:
            span_s = min(span_s, starts_s - now_s)
        now_s += span_s
        for i in active:
            left[i] -= span_s * pace[i]
            if left[i] <= 1e-9 * (first_s + second_s):
                ends[i] = now_s
    return ends[0], ends[1]


@given(first=SECONDS, second=SECONDS, first_xi=XI, second_xi=XI)
def test_shared_ends_are_those_of_the_pair_played_step_by_step(
    first: float, second: float, first_xi: float, second_xi: float
) -> None:
    wanted = played(first, second, first_xi, second_xi, 0.0)
    assert shared_ends(first, second, first_xi, second_xi) == pytest.approx(wanted, rel=1e-6)


@given(mine=SECONDS, theirs=SECONDS, my_xi=XI, their_xi=XI)
def test_no_insertion_time_beats_both_ends(mine: float, theirs: float, my_xi: float, their_xi: float) -> None:
    timing = pair_timing(mine, theirs, my_xi, their_xi)
    best_s = min(timing.shared_s, timing.sequential_s)
    for part in range(11):
        average_s = sum(played(mine, theirs, my_xi, their_xi, theirs * part / 10)) / 2
        assert average_s >= best_s * (1 - 1e-6)


@given(mine=SECONDS, theirs=SECONDS, my_xi=XI, their_xi=XI)
def test_the_two_ends_are_the_first_and_the_last_insertion_time(
    mine: float, theirs: float, my_xi: float, their_xi: float
) -> None:
    timing = pair_timing(mine, theirs, my_xi, their_xi)
    assert timing.shared_s == pytest.approx(sum(played(mine, theirs, my_xi, their_xi, 0.0)) / 2, rel=1e-6)
    assert timing.sequential_s == pytest.approx(
        sum(played(mine, theirs, my_xi, their_xi, theirs)) / 2, rel=1e-6
    )


@pytest.mark.parametrize(
    ("case", "mine", "theirs", "my_xi", "their_xi", "pays"),
    [
        ("no interference always pays", 100, 100, 1.0, 1.0, True),
        ("two equal jobs at half speed: the average is 200 against 150", 100, 100, 2.0, 2.0, False),
        ("two equal jobs at three quarters: 133 against 150", 100, 100, 4 / 3, 4 / 3, True),
        ("a short newcomer beside a long partner at half speed", 10, 1000, 2.0, 2.0, True),
        ("a long newcomer beside a short partner at half speed", 1000, 10, 2.0, 2.0, False),
        ("a newcomer that costs its partner nothing and itself much", 100, 100, 3.0, 1.0, True),
        ("a newcomer that costs its partner much and itself nothing", 10, 1000, 1.0, 3.0, True),
        ("equal averages: not better is not enough", 100, 100, 1.5, 1.5, False),
    ],
)
def test_theorem_1(case: str, mine: float, theirs: float, my_xi: float, their_xi: float, pays: bool) -> None:
    timing = pair_timing(mine, theirs, my_xi, their_xi)
    assert timing.pays is pays, (case, timing)


def test_the_papers_sign_rule_alone_picks_the_worse_end_where_ours_does_not() -> None:
    """Case 1 of the paper (the newcomer ends first when shared): a rule on the ratios alone cannot see how
    much each has left. The same ratios pay for a short newcomer and do not for an equal one."""
    assert pair_timing(10, 1000, 2.0, 2.0).pays
    assert not pair_timing(999, 1000, 2.0, 2.0).pays


@given(mine=SECONDS, theirs=SECONDS, my_xi=XI, their_xi=XI, stretch=st.floats(1.0, 5.0))
def test_accumulation_only_ever_costs(
    mine: float, theirs: float, my_xi: float, their_xi: float, stretch: float
) -> None:
    whole, part = (
        pair_timing(mine, theirs, my_xi, their_xi),
        pair_timing(mine, theirs, my_xi, their_xi, stretch),
    )
    assert part.sequential_s == whole.sequential_s
    assert part.shared_s >= whole.shared_s * (1 - 1e-9)


# --- Step times ---------------------------------------------------------------------------------------


@given(
    fixed_s=st.floats(0.0, 1.0),
    per_sample_s=st.floats(1e-4, 1.0),
    batch=st.integers(2, 512),
    measured=st.sets(st.integers(1, 64), min_size=2, max_size=4),
    wanted=st.integers(1, 64),
)
def test_the_fitted_model_gives_back_the_law_it_was_measured_from(
    fixed_s: float, per_sample_s: float, batch: int, measured: set[int], wanted: int
) -> None:
    def law_s(s: int) -> float:
        return s * fixed_s + per_sample_s * batch  # Eq. 3 without overlap.

    points = tuple(
        ProfilePoint(sub_batch=-(-batch // s), accumulation_steps=s, step_s=law_s(s), memory_mib=1.0)
        for s in measured
    )
    assert step_s(Profile(points=points), batch, wanted) == pytest.approx(law_s(wanted), rel=1e-6)


def test_a_measured_point_is_believed_over_the_model() -> None:
    measured = profile(8, (1, 1.0, 1.0), (2, 9.0, 1.0), (4, 1.2, 1.0))
    assert step_s(measured, 8, 2) == 9.0


@pytest.mark.parametrize(("share", "each"), [(None, 0.035), (0.2, 0.2), (0.0, 0.0)])
def test_one_point_is_carried_to_other_parts_by_what_these_cost_elsewhere(
    share: float | None, each: float
) -> None:
    """A forward pass is a third of a step, and three of four parts go through it twice."""
    known = msgspec.structs.replace(profile(8, (1, 1.5, 1.0)), part_share=share)
    assert step_s(known, 8, 4) == pytest.approx(1.5 * (1.0 + 0.25 + 3 * each))
    assert modelled_from(known, 4) == "modelled from s = 1"
    assert (step_s(known, 8, 1), modelled_from(known, 1)) == (1.5, "")
    back = msgspec.structs.replace(profile(8, (4, step_s(known, 8, 4) or 0.0, 1.0)), part_share=share)
    assert step_s(back, 8, 1) == pytest.approx(1.5), "and back"


def test_without_points_nothing_is_known() -> None:
    assert fit_step_model(Profile(), 8) is None
    assert step_s(Profile(), 8, 1) is None
    assert modelled_from(Profile(), 2) == modelled_from(None, 2) == ""


def test_what_a_part_costs_is_learned_where_several_s_were_measured() -> None:
    assert part_share(profile(8, (1, 2.0, 1.0), (8, 2.7, 1.0)), 8) == pytest.approx(0.05)
    assert part_share(profile(8, (1, 2.0, 1.0)), 8) is None
    assert part_share(profile(8, (2, 2.0, 1.0), (4, 2.5, 1.0)), 8) is None, "of what?"


def test_noise_that_makes_smaller_batches_faster_is_not_extrapolated() -> None:
    assert step_s(profile(8, (1, 1.0, 1.0), (2, 0.8, 1.0)), 8, 8) == 1.0


# --- Memory -------------------------------------------------------------------------------------------


@given(
    base=st.floats(1.0, 1000.0),
    slope=st.floats(0.0, 10.0),
    batch=st.sampled_from([8, 64, 256]),
    wanted=st.sampled_from([1, 2, 4, 8]),
)
def test_memory_between_measured_points_is_on_the_line(
    base: float, slope: float, batch: int, wanted: int
) -> None:
    measured = profile(batch, *((s, 1.0, base + slope * batch / s) for s in (1, 8)))
    assert memory_mib(measured, wanted) == pytest.approx(base + slope * batch / wanted)


def test_what_is_in_use_between_steps_stays_and_the_rest_shrinks_with_the_sub_batch() -> None:
    known = msgspec.structs.replace(profile(64, (1, 1.0, 900.0)), static_mib=100.0)
    assert [memory_mib(known, s) for s in (1, 2, 4, 16)] == [900.0, 500.0, 300.0, 150.0]
    both = known.add_points((ProfilePoint(sub_batch=16, accumulation_steps=4, step_s=1.2, memory_mib=400.0),))
    assert memory_mib(both, 4) == 400.0, "what was measured wins"
    assert memory_mib(both, 8) == 250.0, "and is what the model goes on from"
    for static_mib in (None, 900.0, 1000.0):
        assert memory_mib(msgspec.structs.replace(known, static_mib=static_mib), 4) == 900.0


def test_how_far_the_model_goes() -> None:
    one, two = profile(64, (1, 1.0, 9.0)), profile(64, (1, 1.0, 9.0), (2, 1.0, 5.0))
    assert (one.s_max, two.s_max, Profile().s_max) == (16, 2, 1)
    assert [point.accumulation_steps for point in modelled_points(one)] == [2, 4, 8, 16]
    assert [point.accumulation_steps for point in modelled_points(profile(6, (1, 1.0, 9.0)))] == [2, 4]
    assert modelled_points(two) == () == modelled_points(Profile())
    assert modelled_points(msgspec.structs.replace(one, accumulates=False)) == ()


def test_memory_outside_the_measured_range_is_bounded_and_never_guessed_lower() -> None:
    measured = profile(64, (2, 1.0, 500.0), (4, 1.0, 300.0))
    assert memory_mib(measured, 8) == 300.0
    assert memory_mib(measured, 1) is None
    assert memory_mib(Profile(), 1) is None


# --- Interference -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "xi", "source"),
    [(0.3, 0.4, 1.0, "duty-cycle"), (0.8, 0.7, 1.5, "duty-cycle"), (1.0, 1.0, 2.0, "duty-cycle"),
     (None, 0.5, 1.5, "default"), (None, None, 1.5, "default")],
)  # fmt: skip
def test_the_duty_cycle_rule(first: float | None, second: float | None, xi: float, source: str) -> None:
    rule = duty_cycle_rule(Profile(duty_cycle=first), Profile(duty_cycle=second))
    assert rule.first == rule.second == pytest.approx(xi)
    assert rule.source == source
    assert duty_cycle_rule(None, None).source == "default"


def test_a_swapped_pair_is_the_same_pair() -> None:
    pair = Interference(first=1.2, second=1.8, source="observed", count=3)
    assert pair.swap() == Interference(first=1.8, second=1.2, source="observed", count=3)
    assert pair.swap().swap() == pair


@given(accumulation=st.integers(-3, 0))
def test_points_that_make_no_sense_are_refused(accumulation: int) -> None:
    assume(accumulation < 1)
    with pytest.raises(ValueError, match="at least 1"):
        ProfilePoint(sub_batch=1, accumulation_steps=accumulation, step_s=1.0, memory_mib=1.0)
    with pytest.raises(ValueError, match="positive"):
        ProfilePoint(sub_batch=1, accumulation_steps=1, step_s=float("nan"), memory_mib=1.0)
