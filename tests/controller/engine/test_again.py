"""Jobs that have ended and are queued again; jobs that wait and are asked for in other words."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import Dependency, JobId, LimitSettings, StartAttempt
from cotenant.controller.domain import events as ev
from tests.controller.building import Desk, report


def again(desk: Desk, job_id: str | int) -> None:
    desk.tell(ev.RequeueRequested(job_id=JobId(str(job_id)), by="ann"))


def change(desk: Desk, job_id: str | int, **changes: str | int | float | None) -> None:
    desk.tell(ev.SpecChanged(job_id=JobId(str(job_id)), changes=changes, by="ann"))


@pytest.mark.parametrize("outcome", ["finished", "user-failed"])
def test_a_job_that_has_ended_runs_again_as_itself_from_its_save(outcome: str) -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1, resumable=True)
    desk.progress(1, 70, 1.0)
    desk.durable(1, 60)
    desk.wait(50.0)
    desk.end(1, outcome, exit_code=3)
    was = desk.job(1)
    before = (was.spent.wait_s, was.spent.load_s, was.spent.run_s)
    desk.wait(1000.0)
    again(desk, 1)
    (start,) = [each for each in desk.commands if isinstance(each, StartAttempt)]
    assert (start.attempt, start.resume_step) == (2, 60)
    job = desk.job(1)
    assert (job.ended_s, job.attempt.exit_code, job.counts.user_failures) == (None, None, 0)
    assert (job.spent.wait_s, job.spent.load_s, job.spent.run_s) == before, "the time between is nobody's"
    desk.start(1)
    desk.wait(10.0)
    desk.end(1)
    assert desk.phase(1) == "done" and desk.job(1).spent.run_s == before[2] + 10.0


def test_a_cancelled_job_that_never_ran_begins_at_its_beginning_and_says_who_wanted_it() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(9)
    desk.submit(1)
    desk.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
    again(desk, 1)
    assert desk.phase(1) == "queued"
    assert str(desk.job(1).reason) == "queued again by ann after it had ended as cancelled"
    desk.end(9)
    assert desk.phase(1) == "loading" and desk.job(1).attempt.number == 1


def test_it_has_its_whole_time_limit_and_its_retries_again() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1, time_limit_s=100.0, retries=1)
    desk.end(1, "user-failed")
    desk.end(1, "user-failed")
    assert desk.phase(1) == "failed"
    again(desk, 1)
    desk.start(1)
    desk.wait(99.0)
    desk.end(1, "user-failed")
    assert desk.phase(1) == "loading", "one failure is forgiven again"
    desk.start(1)
    desk.wait(101.0)
    assert desk.phase(1) in ("checkpointing", "stopping")


def test_a_task_takes_a_place_of_its_array_and_what_waits_for_it_waits_again() -> None:
    desk = Desk("fifo", report("a", 4))
    for index in range(2):
        desk.submit(f"1_{index}", array_limit=1)
    desk.end("1_0")
    again(desk, "1_0")
    assert (desk.phase("1_0"), desk.phase("1_1")) == ("blocked", "loading")
    desk.submit(5, after=(Dependency(job_id=JobId("1_0")),))
    assert desk.phase(5) == "blocked"
    desk.end("1_1")
    desk.end("1_0")
    assert (desk.phase("1_0"), desk.phase(5)) == ("done", "loading")


def test_one_that_waits_for_a_failed_job_ends_at_once_again() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.submit(1)
    desk.submit(2, after=(Dependency(job_id=JobId("1")),))
    desk.end(1, "user-failed")
    again(desk, 2)
    assert desk.phase(2) == "cancelled"


def test_a_priority_that_is_set_moves_it_before_others() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(9)
    desk.submit(1)
    desk.submit(2)
    change(desk, 2, priority=5)
    desk.end(9)
    assert (desk.phase(1), desk.phase(2)) == ("queued", "loading")


def test_fewer_devices_let_it_start_at_once() -> None:
    desk = Desk("fifo", report("a", 2))
    desk.run(9)
    desk.submit(1, gpus=2)
    assert desk.phase(1) == "queued"
    change(desk, 1, gpus_min=1, gpus_max=1)
    assert desk.starts() == ["1"]


def test_another_length_is_what_the_policy_goes_by() -> None:
    desk = Desk("sjf", report("a", 1))
    desk.run(9, expected_s=10.0)
    desk.submit(1, expected_s=100.0)
    desk.submit(2, expected_s=200.0)
    change(desk, 2, expected_s=50.0)
    assert desk.job(2).estimate.source == "user" and desk.job(2).estimate.remaining_s == 50.0
    desk.end(9)
    assert desk.phase(2) == "loading"


def test_a_preempted_job_has_what_it_trained_taken_off_what_is_set() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1, resumable=True, expected_s=100.0)
    desk.wait(30.0)
    desk.submit(9, priority=5)
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    desk.durable(1, 20)
    desk.end(1, "stopped")
    assert desk.phase(1) == "queued"
    change(desk, 1, expected_s=300.0)
    assert desk.job(1).estimate.remaining_s == pytest.approx(300.0 - desk.job(1).spent.run_s)


def test_another_organisation_frees_the_limit_of_the_one_before() -> None:
    desk = Desk("fifo", report("a", 4), limits=LimitSettings(organisation_jobs=1))
    desk.submit(1, organisation="vision", gpus=4)
    desk.submit(2, organisation="speech", gpus=4)
    desk.submit(3, organisation="speech", user="bob")
    assert [desk.phase(number) for number in (1, 2, 3)] == ["loading", "queued", "blocked"]
    change(desk, 2, organisation="sound")
    assert desk.phase(3) in ("queued", "loading")


@pytest.mark.parametrize("changes", [{"gpus_min": 2, "gpus_max": 2}, {"name": "x", "expected_s": 5.0}])
def test_what_a_job_was_started_with_is_not_changed_while_it_runs(changes: dict[str, Any]) -> None:
    desk = Desk("fifo", report("a", 1))
    desk.run(1)
    spec = desk.job(1).spec
    change(desk, 1, **changes)
    assert desk.job(1).spec is spec


def put_back(desk: Desk, after_s: float, by: str = "ann") -> None:
    """The job has run so long when it is put back, and goes."""
    desk.start(1, resumable=False)
    desk.wait(after_s)
    desk.tell(ev.RequeueRequested(job_id=JobId("1"), by=by))
    desk.end(1, "stopped")


def until_it_starts(desk: Desk) -> float:
    before_s = desk.now_s
    while desk.phase(1) == "blocked":
        desk.wait(1.0)
    assert desk.phase(1) == "loading"
    return desk.now_s - before_s


def test_a_job_that_puts_itself_back_at_once_waits_longer_each_time_and_says_so() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.submit(1)
    waits, said = [], []
    for _ in range(9):
        put_back(desk, 1.0)
        said.append(str(desk.job(1).reason))
        if desk.phase(1) == "blocked":
            desk.restart()
        waits.append(until_it_starts(desk))
    assert waits == [0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    why = "it was put back in the queue by ann, 3 times in a row within 60 s of its start"
    assert said[2] == f"retries in 20s after {why}"
    put_back(desk, 61.0)
    assert until_it_starts(desk) == 0.0, "it did something"
    put_back(desk, 1.0)
    assert until_it_starts(desk) == 0.0, "it begins anew"


def test_a_loop_of_requeues_makes_few_attempts_an_hour() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.submit(1)
    while desk.now_s < 3600.0:
        if desk.phase(1) == "loading":
            put_back(desk, 0.5)
        desk.wait(1.0)
    assert desk.job(1).attempt.number <= 13


def test_who_is_put_back_by_an_admin_or_released_by_its_owner_starts_at_once() -> None:
    desk = Desk("fifo", report("a", 1))
    desk.submit(1)
    for _ in range(4):
        put_back(desk, 1.0, by="root")
        assert desk.phase(1) == "loading"
    for _ in range(2):
        put_back(desk, 1.0)
    assert desk.phase(1) == "blocked"
    desk.tell(ev.HoldRequested(job_id=JobId("1"), by="ann"))
    desk.tell(ev.ReleaseRequested(job_id=JobId("1"), by="ann"))
    assert desk.phase(1) == "loading"
