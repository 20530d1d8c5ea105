"""Where `checkpoint verify` stops a command, and what it says that it has not reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.cli.jobs.stops import (
    FIRST,
    TRIES,
    Course,
    course_of,
    next_stop,
    places_not_reached,
    plan_stops,
)

COURSES = st.builds(
    Course,
    steps=st.integers(1, 2000),
    epoch_steps=st.none() | st.integers(1, 300),
    why_no_epochs=st.just("a while loop"),
)


@given(COURSES)
def test_stops_are_increasing_and_before_the_last_step(course: Course) -> None:
    stops = plan_stops(course)
    assert list(stops) == sorted(set(stops))
    assert all(0 < step < course.steps for step in stops)
    assert bool(stops) == (course.steps > 1)


@given(each=st.integers(1, 300), epochs=st.integers(2, 9), more=st.integers(0, 300))
def test_of_two_epochs_one_stop_is_at_an_end_and_one_in_a_later_one(
    each: int, epochs: int, more: int
) -> None:
    course = Course(steps=each * epochs + more % each, epoch_steps=each)
    stops = plan_stops(course)
    if any(course.is_epoch_end(step) for step in range(FIRST, course.steps)):
        assert any(course.is_epoch_end(step) for step in stops)
    if each >= 2 * FIRST:
        assert any(step < each for step in stops)
        assert any(step > each and not course.is_epoch_end(step) for step in stops)
        assert places_not_reached(course, stops) == []


@given(COURSES, st.integers(1, 2000), st.integers(0, 2000), st.integers(1, 2 * TRIES))
def test_a_refused_stop_is_wanted_later(course: Course, refused: int, now: int, tries: int) -> None:
    step = next_stop(course, plan_stops(course), refused, now, tries)
    assert step is None or (max(refused, now) < step < course.steps)
    if step is not None and tries <= TRIES and course.is_epoch_end(refused):
        assert course.is_epoch_end(step) or step in plan_stops(course)


@pytest.mark.parametrize(
    ("course", "stops"),
    [
        (Course(steps=40, epoch_steps=10), (3, 10, 25, 37)),
        (Course(steps=4690, epoch_steps=469), (117, 469, 2579, 4687)),
        (Course(steps=20, epoch_steps=4), (3, 8, 18)),
        (Course(steps=20, epoch_steps=20), (4, 10, 17)),
        (Course(steps=20), (4, 10, 17)),
        (Course(steps=2), (1,)),
        (Course(steps=1), ()),
    ],
)
def test_stops_are_of_every_kind(course: Course, stops: tuple[int, ...]) -> None:
    assert plan_stops(course) == stops


WHILE = "length not seen: train.py line 3 is a while loop"


@pytest.mark.parametrize(
    ("lengths", "each", "why"),
    [
        ([(None, (4, 30), "loops seen"), (40, (4, 30), "loops seen")], 10, ""),
        ([(48, (2, 3, 8), "loops seen")], 8, ""),
        ([(40, (40,), "loops seen: range(40)")], None, "its steps are in one loop"),
        ([(None, (), WHILE)], None, "train.py line 3 is a while loop"),
        ([(40, (), "the Trainer says 40 steps in all")], None, "the Trainer says 40 steps in all"),
        ([(41, (4, 30), "3 a step")], None, "3 a step, and they have different numbers of steps"),
        ([(32, (4, 8), "")], None, ", and they have different numbers of steps"),
        ([(20, (2, 10), ""), (40, (2, 10), "")], None, "it trains in several loops, one after the other"),
        ([], None, "the command tells none of its loops"),
    ],
)
def test_epochs_are_as_long_as_its_loops_say(
    lengths: list[tuple[int | None, tuple[int, ...], str]], each: int | None, why: str
) -> None:
    course = course_of(40, lengths, whole=True)
    assert (course.epoch_steps, course.why_no_epochs) == (each, why)


@pytest.mark.parametrize(
    ("course", "stops", "said"),
    [
        (Course(steps=40, epoch_steps=10), (3, 10, 25), []),
        (Course(steps=9, epoch_steps=10), (3,), ["9 steps are within one epoch"]),
        (Course(steps=40, epoch_steps=10), (3, 25), ["none was accepted there"]),
        (Course(steps=40, epoch_steps=10), (10,), ["in the first epoch", "within a later epoch"]),
        (Course(steps=40, why_no_epochs="a while loop"), (8,), ["epochs were not seen (a while loop)"]),
    ],
)
def test_what_was_not_reached_is_said(course: Course, stops: tuple[int, ...], said: list[str]) -> None:
    found = places_not_reached(course, stops)
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


@given(COURSES, st.integers(1, 2000))
def test_a_place_is_called_as_it_is(course: Course, step: int) -> None:
    place = course.place_of(step)
    assert place.startswith("at the end of") == course.is_epoch_end(step)
    assert (place == "") == (course.epoch_steps is None)
