"""Arrays of which only so many tasks may wait for devices or have them at once; and what `requeue` does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import Dependency, JobId, Launch, SlurmScript, StartAttempt
from cotenant.controller.domain import events as ev
from tests.controller.building import Desk, report, spec


def array(desk: Desk, tasks: int, limit: int, **more: Any) -> None:
    for index in range(tasks):
        desk.submit(f"1_{index}", array_limit=limit, **more)


def phases(desk: Desk, tasks: int) -> list[str]:
    return [desk.phase(f"1_{index}") for index in range(tasks)]


def test_the_others_wait_although_devices_are_free() -> None:
    desk = Desk("fifo", report("a", 4))
    array(desk, 4, 2)
    assert phases(desk, 4) == ["loading", "loading", "blocked", "blocked"]
    assert desk.why("1_2") == "waits for another task of array 1: at most 2 of them at once"
    desk.submit(9)
    assert desk.phase(9) == "loading", "another job's devices are not theirs"


def test_each_that_leaves_lets_the_first_of_the_others_go() -> None:
    desk = Desk("fifo", report("a", 4))
    array(desk, 5, 2)
    desk.end("1_1", "user-failed")
    assert phases(desk, 5) == ["loading", "failed", "loading", "blocked", "blocked"]
    desk.tell(ev.CancelRequested(job_id=JobId("1_3"), by="ann"))
    desk.end("1_0")
    assert phases(desk, 5) == ["done", "failed", "loading", "cancelled", "loading"]


def test_one_that_is_held_gives_its_place_away_and_asks_for_another() -> None:
    desk = Desk("fifo", report("a", 1))
    array(desk, 3, 1)
    desk.submit(9)
    desk.tell(ev.HoldRequested(job_id=JobId("1_1"), by="ann"))
    desk.end("1_0")
    desk.end("9")
    assert phases(desk, 3) == ["done", "held", "loading"]
    desk.tell(ev.ReleaseRequested(job_id=JobId("1_1"), by="ann"))
    assert desk.phase("1_1") == "blocked"
    desk.end("1_2")
    assert desk.phase("1_1") == "loading"


def test_one_that_is_put_back_keeps_its_place() -> None:
    desk = Desk("fifo", report("a", 4))
    array(desk, 3, 1)
    desk.start("1_0", resumable=False)
    desk.tell(ev.PreemptRequested(job_id=JobId("1_0"), by="root"))
    assert desk.phase("1_0") == "running", "it cannot resume"
    desk.tell(ev.RequeueRequested(job_id=JobId("1_0"), by="ann"))
    desk.end("1_0", "stopped")
    assert phases(desk, 3) == ["loading", "blocked", "blocked"]
    assert desk.job("1_0").attempt.number == 2


def test_what_is_put_back_has_all_of_its_time_limit_again() -> None:
    desk = Desk("fifo", report("a", 1))
    slurm = Launch(argv=("bash", "x.sh"), uid=1000, slurm=SlurmScript())
    desk.tell(ev.JobArrived(spec=msgspec.structs.replace(spec(1, time_limit_s=100.0), launch=slurm)))
    desk.start(1, resumable=False)
    desk.wait(70.0)
    desk.tell(ev.RequeueRequested(job_id=JobId("1"), by="ann"))
    desk.end(1, "stopped")
    again = [command for command in desk.commands if isinstance(command, StartAttempt)]
    assert [command.time_left_s for command in again] == [100.0]
    desk.start(1, resumable=False)
    desk.wait(99.0)
    assert desk.phase(1) == "running"
    desk.wait(2.0)
    assert desk.phase(1) == "stopping"


def test_a_failure_of_the_host_frees_the_place_for_the_time_of_the_back_off() -> None:
    desk = Desk("fifo", report("a", 4))
    array(desk, 2, 1)
    desk.end("1_0", "infra-failed")
    assert phases(desk, 2) == ["blocked", "loading"]
    desk.wait(600.0)
    assert desk.phase("1_0") == "blocked"
    desk.end("1_1")
    assert phases(desk, 2) == ["loading", "done"]


def test_dependencies_come_first() -> None:
    desk = Desk("fifo", report("a", 4))
    desk.submit(7)
    array(desk, 2, 1, after=(Dependency(job_id=JobId("7")),))
    assert desk.why("1_1").startswith("waits for job 7")
    desk.end(7)
    assert phases(desk, 2) == ["loading", "blocked"]


def test_a_restored_engine_knows_who_has_a_place() -> None:
    desk = Desk("fifo", report("a", 4))
    array(desk, 4, 2)
    desk.restart()
    desk.end("1_0")
    assert phases(desk, 4) == ["done", "loading", "loading", "blocked"]


def test_a_limit_is_a_number_of_tasks() -> None:
    with pytest.raises(ValueError, match="an array's limit must not be negative"):
        Desk().submit("1_0", array_limit=-1)
