"""Warm windows of a trace's jobs, each on a cluster that still has the jobs from before.

Rule: a window is a workload like any other, so every policy gets the same ones, job for job.

The trace is cut into N equal parts; of each part the last J jobs count. The J jobs before them run as well
and do not count: in that time each policy shapes the queue, and one that learns has learned. Whatever was
running or waiting when the first of those arrived is there at the start, as `sjf` had left it on the same
cluster (it never preempts, so what a job had left is known): running jobs first, with what they had still to
do and one more load to do it; then waiting jobs. They do not count either. After a window's last job nobody
arrives; it ends when all have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.controller.sim.choices import PolicyChoice
from cotenant.controller.sim.compare import Task, TaskRun
from cotenant.controller.sim.traces.trace import TraceProblem
from cotenant.controller.sim.world.outcome import RunResult
from cotenant.controller.sim.world.workload import Workload

REFERENCE: Final = PolicyChoice("sjf", {})
"""The policy of the cluster until a window begins."""
LEFT_S_MIN: Final = 1.0
"""Seconds that a job past its estimate is expected to need still."""


class TraceWindow(NamedTuple):
    """Rows of the whole workload: `begin` to `counted` run, `counted` to `end` count."""

    number: int
    begin: int
    counted: int
    end: int


def windows_of(jobs: int, windows: int, window_jobs: int) -> list[TraceWindow]:
    """Divides a trace's jobs into equal parts, with a window at the end of each. Raises TraceProblem: the
    jobs are too few."""
    part = jobs // windows
    if part < window_jobs:
        raise TraceProblem(
            f"{windows} windows of {window_jobs} jobs need {windows * window_jobs:,} jobs, not {jobs:,}",
            hint="ask for fewer, or smaller ones with --window-jobs",
        )
    ends = [part * (number + 1) for number in range(windows)]
    return [
        TraceWindow(number, max(0, end - 2 * window_jobs), end - window_jobs, end)
        for number, end in enumerate(ends)
    ]


def reference(task: Task) -> Task:
    """The run of the whole trace in which windows find what was there."""
    return replace(
        task,
        policy=REFERENCE,
        physics=replace(task.physics, pairs="none"),
        failures=None,
        trim=0.0,
        eta=False,
    )


def tasks(
    whole: Sequence[Task],
    references: Sequence[TaskRun],
    policies: Sequence[PolicyChoice],
    size: tuple[int, int],
) -> list[Task]:
    """A run for each seed, window and policy, in this order.

    Args:
        whole: a task over the whole trace for each seed; the policy in it does not matter.
        references: what came of `reference(task)` for each of them, outcomes kept.
        size: how many windows, of how many jobs.

    Raises:
        TraceProblem: the jobs are too few.
    """
    made: list[Task] = []
    for task, run in zip(whole, references, strict=True):
        assert run.outcome is not None and not run.outcome.interrupted
        for window in windows_of(len(task.workload), *size):
            workload = cut(task.workload, run.outcome, window)
            warm = len(workload) - (window.end - window.counted)
            made += [
                replace(task, policy=policy, workload=workload, warm=warm, window=window.number)
                for policy in policies
            ]
    return made


def cut(workload: Workload, before: RunResult, window: TraceWindow) -> Workload:
    """The jobs of a window, after what the reference had running and waiting when it begins."""
    begin_s = float(workload.submit_s[window.begin])
    earlier = slice(0, window.begin)
    started_s = workload.submit_s[earlier] + before.wait_s[earlier]
    there = workload.submit_s[earlier] + before.jct_s[earlier] > begin_s
    runs = started_s < begin_s
    running, waiting = np.flatnonzero(there & runs), np.flatnonzero(there & ~runs)
    running = running[np.argsort(started_s[running], kind="stable")]
    left = len(running) + len(waiting)
    rows = np.concatenate((running, waiting, np.arange(window.begin, window.end)))
    trained_s = np.zeros(len(rows))
    trained_s[: len(running)] = np.maximum(begin_s - (started_s + before.load_s[earlier])[running], 0.0)
    submit_s = np.maximum(workload.submit_s[rows] - begin_s, 0.0)
    assert np.all(submit_s[:left] == 0.0)
    ids = workload.job_ids or tuple(str(row + 1) for row in range(len(workload)))
    optional: dict[str, Any] = {
        name: tuple(column[row] for row in rows.tolist())
        for name in ("submissions", "fractions", "asks", "tells", "resumes")
        if (column := getattr(workload, name))
    }
    return replace(
        workload,
        name=f"{workload.name}, window {window.number}",
        submit_s=submit_s,
        duration_s=np.maximum(workload.duration_s[rows] - trained_s, 1e-3),
        expected_s=np.maximum(
            workload.expected_s[rows] - trained_s, np.minimum(LEFT_S_MIN, workload.expected_s[rows])
        ),
        gpus=workload.gpus[rows],
        load_s=workload.load_s[rows],
        pause_s=workload.pause_s[rows],
        model=workload.model[rows],
        hp=workload.hp[rows],
        organisation=workload.organisation[rows],
        **optional,
        job_ids=tuple(ids[row] for row in rows.tolist()),
    )
