"""Samples of a trace's jobs: warm windows, each on a cluster that still has the jobs from before; and the
busiest period, which experiments of a few hundred jobs are run on.

Rule: a window is a workload like any other, so every policy gets the same ones, job for job.

The trace is cut into N equal parts; of each part the last J jobs count. The J jobs before them run as well
and do not count: in that time each policy shapes the queue, and one that learns has learned. Whatever was
running or waiting when the first of those arrived is there at the start, as `sjf` had left it on the same
cluster (it never preempts, so what a job had left is known): running jobs first, with what they had still to
do and one more load to do it; then waiting jobs. They do not count either. After a window's last job nobody
arrives; it ends when all have ended.

Source of the busiest period: Castor section 9.1 "randomly sample[s] 240 jobs from the busiest period" of a
trace and says neither how long a period is nor what busy means. Our rule: the period has a given length on
the trace's clock and begins at a submission. Of those with at least `jobs` submissions it is the one to which
most GPU time was submitted, a job's time counted up to the period's length: else one job of a month would
make its period the busiest. The sample is drawn from the period's jobs, each as likely, and keeps their order
and times. So with twice as many jobs from one period the load doubles, which is how Castor's Fig. 16 scales
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.controller.sim.choices import PolicyChoice
from cotenant.controller.sim.compare import Task, TaskRun
from cotenant.controller.sim.preparing import Stream, stream
from cotenant.controller.sim.traces.trace import Trace, TraceProblem
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


def busiest(trace: Trace, *, span_s: float, jobs: int) -> Trace:
    """The jobs of the busiest period of `span_s` seconds with at least `jobs` of them; of equals the first.

    The trace must be on one clock and in order of submission, as traces are. A part of a GPU counts as a
    whole one.

    Raises:
        TraceProblem: no such period has so many jobs, or the arguments make no sense.
    """
    if not span_s > 0.0 or jobs < 1:
        raise TraceProblem(
            f"a period of {span_s:g} s with {jobs} jobs makes no sense", hint="use more of both"
        )
    first = np.arange(len(trace))
    end = np.searchsorted(trace.submit_s, trace.submit_s + span_s, side="left")
    gpu_s = np.ceil(trace.gpus) * np.minimum(trace.duration_s, span_s)
    before = np.concatenate(([0.0], np.cumsum(gpu_s)))
    work = np.where(end - first >= jobs, before[end] - before[first], -1.0)
    if not len(trace) or work.max() < 0.0:
        most = int((end - first).max(initial=0))
        raise TraceProblem(
            f"{trace.name}: no period of {span_s / 3600:g} h has {jobs:,} submissions",
            hint=f"the fullest has {most:,}: ask for fewer, or for a longer period",
        )
    start = int(work.argmax())
    return trace.take(np.arange(start, int(end[start])))


def sample(trace: Trace, *, jobs: int, seed: int) -> Trace:
    """Draws so many of a trace's jobs, without replacement, and keeps them in their order.

    The jobs of a smaller sample are among those of a larger one of the same seed.

    Raises:
        TraceProblem: it has fewer.
    """
    if not 1 <= jobs <= len(trace):
        raise TraceProblem(f"{trace.name}: no sample of {jobs:,} jobs can be drawn from {len(trace):,}")
    order = stream(seed, Stream.SAMPLE).permutation(len(trace))
    return trace.take(np.sort(order[:jobs]))
