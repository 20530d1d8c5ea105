"""A length carries what it rests on, and is shown as exactly as it is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import GUESS, Job, JobEstimate, Length, Phase, Reason, texts
from tests.controller.building import spec

SIBLINGS = "as 12 others of this sweep"
TIMES_S = st.floats(min_value=0.0, max_value=1e7)


@pytest.mark.parametrize(
    ("length", "wanted"),
    [
        (Length(300.0, 33.0, 2700.0, "unknown length"), "about 5 min (a guess: nothing is known yet)"),
        (Length(300.0, 300.0, 300.0, "unknown length"), "about 5 min (a guess: nothing is known yet)"),
        (Length(21.7, 18.0, 30.0, SIBLINGS), f"about 20 s ({SIBLINGS})"),
        (Length(5.0, 1.0, 9.0, "loops, overrun"),
         "about 5 s (from its measured steps and the loops that were seen; it has taken longer already)"),
        (Length(312.2, 312.2, 312.2, "user"), "5m12s"),
    ],
)  # fmt: skip
def test_a_length_says_what_it_rests_on(length: Length, wanted: str) -> None:
    assert str(length) == wanted


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (0.0, "less than 1 s"), (7.4, "about 7 s"), (22.0, "about 20 s"), (89.0, "about 90 s"),
        (-30.0, "about -30 s"), (306.32, "about 5 min"), (5000.0, "about 83 min"), (7000.0, "about 2 h"),
        (400_000.0, "about 5 days"), (float("inf"), "an unknown time"), (float("nan"), "an unknown time"),
    ],
)  # fmt: skip
def test_an_expected_time_has_no_more_digits_than_are_known(seconds: float, wanted: str) -> None:
    assert texts.rough_duration(seconds) == wanted


@given(
    remaining_s=TIMES_S,
    spread=st.none() | st.tuples(TIMES_S, TIMES_S).map(sorted),
    source=st.sampled_from((GUESS, "user", SIBLINGS)),
    after_s=TIMES_S,
    slowdown=st.floats(min_value=0.5, max_value=4.0),
    phase=st.sampled_from((Phase.RUNNING, Phase.QUEUED)),
)
def test_what_is_left_is_between_its_bounds_at_any_time(
    remaining_s: float, spread: list[float] | None, source: str, after_s: float, slowdown: float, phase: Phase
) -> None:
    low_s, high_s = spread or (None, None)
    estimate = JobEstimate(
        remaining_s=remaining_s, source=source, low_s=low_s, high_s=high_s, slowdown=slowdown
    )
    job = Job(
        spec=spec(1), number=1, submitted_s=0.0, reason=Reason("finished"), estimate=estimate, phase=phase
    )
    left = job.length_left(after_s)
    assert left is not None and left.likely_s == job.remaining_now_s(after_s)
    assert 0.0 <= left.low_s <= left.likely_s <= left.high_s
    told = job.told_left(after_s, left.likely_s + 10.0)
    assert isinstance(told, Length) != left.is_exact
    assert told == left.likely_s + 10.0 or (isinstance(told, Length) and told.is_guess == (source == GUESS))


def test_a_length_that_nobody_estimates_is_not_0() -> None:
    job = Job(spec=spec(1), number=1, submitted_s=0.0, reason=Reason("finished"))
    assert job.length_left(5.0) is None
    assert job.told_left(5.0) == "an unknown time"
