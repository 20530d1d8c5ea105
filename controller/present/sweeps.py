"""The tasks of a sweep, ranked by the last value of a metric. Pure.

Rule: a rank needs a value that was seen. A task without one, and a task that failed, has none, and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cotenant.controller.domain import JobMetric, Phase
from cotenant.controller.present.jobs import parameters, state_colour
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, duration
from cotenant.controller.wire import clients as wire


class SweepMetric(NamedTuple):
    """What tasks are ranked by."""

    name: str
    is_more_better: bool = False

    @classmethod
    def read(cls, text: str) -> SweepMetric:
        """Reads `NAME`, `NAME:min` or `NAME:max`. Raises Problem."""
        name, colon, which = text.rpartition(":")
        if colon and which not in ("min", "max"):
            raise Problem("usage", f"--metric {text!r} must end in :min or :max", "as in acc:max")
        if not (name if colon else text):
            raise Problem("usage", "--metric needs a name", "as in val_loss or acc:max")
        return cls(name, which == "max") if colon else cls(text)


class SweepTask(NamedTuple):
    """A row of the report."""

    rank: int | None
    metric: JobMetric | None
    job: wire.JobView


def ranked_tasks(jobs: Iterable[wire.JobView], by: SweepMetric) -> list[SweepTask]:
    """The best first; then those that have no value, and those that failed."""
    found = [(next((each for each in job.metrics if each.name == by.name), None), job) for job in jobs]
    good = [(metric, job) for metric, job in found if metric is not None and job.phase is not Phase.FAILED]
    good.sort(key=lambda each: -each[0].value if by.is_more_better else each[0].value)
    ranked = [SweepTask(rank, metric, job) for rank, (metric, job) in enumerate(good, start=1)]
    rest = [(metric, job) for metric, job in found if metric is None or job.phase is Phase.FAILED]
    rest.sort(key=lambda each: each[1].phase is Phase.FAILED)
    return [*ranked, *(SweepTask(None, metric, job) for metric, job in rest)]


def missing_metric(tasks: Sequence[SweepTask], by: SweepMetric) -> str:
    """That no task has told the metric, and which ones they have told; empty where one has."""
    if any(task.metric is not None for task in tasks):
        return ""
    told = sorted({metric.name for task in tasks for metric in task.job.metrics})
    return f"no task has told a metric {by.name!r}; " + (
        f"told were: {', '.join(told)}" if told else "none was"
    )


def json_of(task: SweepTask, by: SweepMetric) -> dict[str, Any]:
    """A row for programs."""
    metric, job = task.metric, task.job
    return {
        "rank": task.rank,
        "job": job.job_id,
        "parameters": job.parameters,
        "metric": by.name,
        "value": None if metric is None else metric.value,
        "step": None if metric is None else metric.step,
        "state": job.phase,
        "run_s": job.run_s,
        "reason": job.reason,
    }


def columns_of(by: SweepMetric) -> tuple[Column, ...]:
    """The columns, of which one has the metric's name."""
    return (
        Column("RANK", lambda t: NONE if t.rank is None else str(t.rank), right=True),
        Column("JOB", lambda t: t.job.job_id),
        Column("VALUES", lambda t: parameters(t.job), limit=40),
        Column(by.name.upper(), lambda t: NONE if t.metric is None else f"{t.metric.value:.6g}", right=True),
        Column(
            "STEP", lambda t: str(t.metric.step) if t.metric and t.metric.step else NONE, rank=1, right=True
        ),
        Column("STATE", lambda t: t.job.phase.value, colour=lambda t: state_colour(t.job)),
        Column("RUN", lambda t: duration(t.job.run_s), rank=2, right=True),
        Column("WHY", lambda t: NONE if t.rank is not None else t.job.reason),
    )
