"""Warm windows: which jobs count, who is there at the start, and the same windows for every policy."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from cotenant.controller.sim import scenario, windows
from cotenant.controller.sim.choices import policies_named
from cotenant.controller.sim.compare import Task, TaskRun, run_all
from cotenant.controller.sim.results.document import document
from cotenant.controller.sim.scenario import Scenario
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.traces.trace import TraceProblem
from cotenant.controller.sim.windows import TraceWindow
from cotenant.controller.sim.world.workload import Workload
from tests.controller.sim.test_compare import steady
from tests.controller.sim.workloads import JobRow, cluster, workload

ASKED = Scenario(trace="philly/6214e9", jobs=400, hosts=2, windows=3, window_jobs=50)


def test_the_last_jobs_of_equal_parts_count_and_as_many_before_them_run() -> None:
    assert windows.windows_of(103, 2, 20) == [TraceWindow(0, 11, 31, 51), TraceWindow(1, 62, 82, 102)]
    assert windows.windows_of(100, 5, 20)[0] == TraceWindow(0, 0, 0, 20), "there is nothing before the first"


def test_too_few_jobs_are_a_problem() -> None:
    with pytest.raises(TraceProblem, match="3 windows of 50 jobs need 150 jobs, not 120"):
        windows.windows_of(120, 3, 50)


def cut(whole: Workload, window: TraceWindow, hosts: int = 1) -> Workload:
    return windows.cut(whole, simulate(whole, cluster(hosts), "sjf"), window)


def test_who_was_there_is_there_with_what_was_left() -> None:
    """One device: 1 is over, 2 has trained 30 s of 100, 3 waits; 4 and 5 are the window's own."""
    whole = workload(
        JobRow(0, 50, load_s=10),
        JobRow(10, 100, load_s=20, expected_s=40),
        JobRow(20, 400, pause_s=3, gpus=1),
        JobRow(110, 7),
        JobRow(130, 9),
    )
    found = cut(whole, TraceWindow(0, 3, 4, 5))
    assert found.job_ids == ("2", "3", "4", "5")
    assert found.submit_s.tolist() == [0.0, 0.0, 0.0, 20.0]
    assert found.duration_s.tolist() == [70.0, 400.0, 7.0, 9.0]
    assert found.expected_s.tolist() == [10.0, 400.0, 7.0, 9.0]
    assert found.load_s.tolist() == [20.0, 30.0, 30.0, 30.0]


def test_one_that_has_outlived_its_estimate_is_expected_to_end_soon() -> None:
    whole = workload(JobRow(0, 1000, load_s=10, expected_s=5), JobRow(500, 7))
    assert cut(whole, TraceWindow(0, 1, 1, 2)).expected_s.tolist() == [windows.LEFT_S_MIN, 7.0]


def test_those_that_ran_come_before_those_that_waited() -> None:
    """The third started before the second, which waits for two devices."""
    whole = workload(JobRow(0, 900), JobRow(10, 500, gpus=2), JobRow(20, 800), JobRow(30, 5))
    assert cut(whole, TraceWindow(0, 3, 3, 4), hosts=2).job_ids == ("1", "3", "2", "4")


def made(policies: str = "fifo,srtf", asked: Scenario = ASKED) -> tuple[list[Task], list[Task]]:
    whole = scenario.tasks(asked, [windows.REFERENCE], [0])
    references = run_all([windows.reference(task) for task in whole], workers=1, keep=True)
    return whole, windows.tasks(
        whole, references, policies_named(policies), (asked.windows, asked.window_jobs)
    )


def results(tasks: list[Task]) -> list[TaskRun]:
    return run_all(tasks, workers=1)


def test_every_policy_gets_the_same_windows_and_only_their_jobs_count() -> None:
    _, tasks = made()
    assert [(task.window, task.policy.name) for task in tasks] == [
        (window, name) for window in range(3) for name in ("fifo", "srtf")
    ]
    assert all(one.workload is other.workload for one, other in zip(tasks[::2], tasks[1::2], strict=True))
    for run in results(tasks):
        assert run.summary["counted_jobs"] == 50
        assert run.summary["jobs"] == run.summary["finished"] > 100, (
            "a hundred of the trace, and who was there"
        )
        assert run.summary["window"] == run.task.window


def test_what_counts_is_the_windows_last_jobs() -> None:
    whole, tasks = made("fifo")
    for task, window in zip(tasks, windows.windows_of(400, 3, 50), strict=True):
        counted = slice(task.warm, None)
        gaps = np.diff(task.workload.submit_s[counted])
        assert np.allclose(gaps, np.diff(whole[0].workload.submit_s[window.counted : window.end]))
        assert np.array_equal(
            task.workload.duration_s[counted], whole[0].workload.duration_s[window.counted : window.end]
        )


def test_the_reference_is_the_same_whatever_is_compared() -> None:
    """Neither pairs nor failures are in it: a job's rest follows from its start alone."""
    (whole,) = scenario.tasks(replace(ASKED, failures_mtbf_h=5.0), [windows.REFERENCE], [0])
    asked = windows.reference(whole)
    assert (asked.policy.name, asked.physics.pairs, asked.failures) == ("sjf", "none", None)


def test_the_same_seed_gives_the_same_bytes() -> None:
    def encoded() -> bytes:
        whole, tasks = made()
        value = document("t", results(tasks), options=ASKED.options(), whole=whole[0].workload)
        assert value["workload"]["jobs"] == 400
        return msgspec.json.encode(steady(value))

    assert encoded() == encoded()
