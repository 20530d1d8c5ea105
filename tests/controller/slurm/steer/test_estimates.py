"""Run times from what like jobs took: the closest first, never above the limit, and it is said which."""

from __future__ import annotations

import pytest

from cotenant.controller.slurm.steer.core.estimates import PAST_FIELDS, PastRun, RunTimes, kind_name, runs_in
from tests.controller.slurm.steer.building import job


def run(number: int, took_s: float, **more: object) -> PastRun:
    given = {"limit_s": 600.0, "partition": "main", "user": "ann", "name": "train-1"} | more
    return PastRun(job_id=str(number), took_s=took_s, **given)  # type: ignore[arg-type]


def test_the_closest_kind_that_is_known_says_how_long() -> None:
    times = RunTimes()
    times.learn(run(number, 100.0 + number) for number in range(5))
    assert times.estimate(job(1, name="train-77")).seconds == 102.0
    other_limit = times.estimate(job(1, name="train-77", limit_s=6000.0))
    assert other_limit.seconds == 102.0 and "of this name" in other_limit.why
    other_name = times.estimate(job(1, name="evaluate"))
    assert other_name.seconds == 102.0 and "with this limit" in other_name.why
    stranger = times.estimate(job(1, name="evaluate", user="bob"))
    assert stranger.seconds == 600.0 and stranger.why.startswith("its limit")


def test_too_few_runs_of_a_distant_kind_say_nothing() -> None:
    times = RunTimes()
    times.learn([run(1, 50.0)])
    assert times.estimate(job(1, name="train-2")).seconds == 50.0
    assert times.estimate(job(1, name="train-2", limit_s=90.0)).seconds == 90.0


def test_where_nothing_like_it_ended_limits_count_as_they_are_used() -> None:
    times = RunTimes()
    times.learn(run(number, 150.0, user=f"user{number}", name=f"n{'x' * number}") for number in range(20))
    assert times.estimate(job(1, user="bob", limit_s=4000.0)).seconds == 1000.0


def test_no_estimate_is_above_the_limit() -> None:
    times = RunTimes()
    times.learn([run(1, 500.0), run(2, 500.0)])
    assert times.estimate(job(1, name="train", limit_s=60.0)).seconds == 60.0


def test_without_a_limit_and_a_past_nothing_is_known() -> None:
    assert RunTimes().estimate(job(1, limit_s=None)).seconds is None


def test_what_is_told_again_counts_once() -> None:
    times = RunTimes()
    for _ in range(3):
        times.learn([run(1, 10.0), run(2, 30.0)])
    assert times.runs == 2 and times.estimate(job(1, name="train-3")).seconds == 20.0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train-17", "train-#"),
        ("seed3_lr0.1", "seed#_lr#.#"),
        ("run-3f9a2c1b", "run-#"),
        ("resnet", "resnet"),
    ],
)
def test_a_kind_is_a_name_without_numbers(name: str, kind: str) -> None:
    assert kind_name(name) == kind


def test_rows_of_the_accounts() -> None:
    rows = {
        "1": ("COMPLETED", "120", "10", "main", "ann", "a;b|c"),
        "2": ("TIMEOUT", "600", "10", "main", "ann", "t"),
        "3": ("CANCELLED by 0", "5", "10", "main", "ann", "t"),
        "4": ("FAILED", "5", "10", "main", "ann", "t"),
        "5": ("COMPLETED", "", "10", "main", "ann", "t"),
        "6": ("COMPLETED", "7", "UNLIMITED", "main", "ann", "broken\nname"),
    }
    assert len(PAST_FIELDS) == 7
    text = "".join(";;".join((number, *row)) + "\n" for number, row in rows.items())
    found = list(runs_in(text, ";;"))
    assert [(each.job_id, each.took_s, each.limit_s) for each in found] == [
        ("1", 120.0, 600.0), ("2", 600.0, 600.0), ("6", 7.0, None),
    ]  # fmt: skip
    assert found[0].name == "a;b|c"
