"""Which s is used when: environment, schedule, count of completed steps."""

from __future__ import annotations

import pytest

from cotenant.gradaccum import Schedule

STEPS, SCHEDULE = "COTENANT_ACCUMULATION_STEPS", "COTENANT_ACCUMULATION_SCHEDULE"


@pytest.mark.parametrize(
    ("env", "completed", "steps"),
    [
        ({}, 0, 1),
        ({STEPS: "4"}, 10, 4),
        ({SCHEDULE: "0:2,120:1"}, 119, 2),
        ({SCHEDULE: "0:2,120:1"}, 120, 1),
        ({SCHEDULE: "0:3", STEPS: "4"}, 7, 3),
        ({SCHEDULE: "", STEPS: ""}, 7, 1),
    ],
)
def test_the_environment_says_which_s(env: dict[str, str], completed: int, steps: int) -> None:
    assert Schedule.from_environment(env).steps_at(completed) == steps


@pytest.mark.parametrize(
    "env",
    [
        {STEPS: "0"},
        {STEPS: "two"},
        {STEPS: "-1"},
        {STEPS: "5000"},
        {SCHEDULE: "2,4"},
        {SCHEDULE: "5:2"},
        {SCHEDULE: "0:2,9:1,4:3"},
        {SCHEDULE: "0:0"},
        {SCHEDULE: "0:2,"},
    ],
)
def test_nonsense_is_an_error_that_shows_what_was_given(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"(?i)step"):
        Schedule.from_environment(env)
