"""Which s is used when: environment, schedule, count of completed steps."""

from __future__ import annotations

import pytest

from cotenant.gradaccum import Schedule, batch_size

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


@pytest.mark.parametrize(("workers", "rows"), [("4", 8), ("2", 16), ("1", 32)])
def test_a_worker_of_an_elastic_job_takes_its_part_of_the_steps_batch(
    monkeypatch: pytest.MonkeyPatch, workers: str, rows: int
) -> None:
    monkeypatch.setenv("COTENANT_STEP_BATCH", "8x4")
    monkeypatch.setenv("WORLD_SIZE", workers)
    assert batch_size(8) == rows


def test_outside_an_elastic_job_a_batch_is_what_the_script_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTENANT_STEP_BATCH", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert batch_size(8) == 8


def test_a_batch_that_cannot_be_divided_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_STEP_BATCH", "8x4")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="cannot be divided equally among 3"):
        batch_size(8)


def test_a_schedule_says_when_s_changes_next() -> None:
    schedule = Schedule.parse("0:1,5:4,12:2")
    assert [schedule.change_after(step) for step in (0, 4, 5, 11, 12)] == [5, 5, 12, 12, None]
