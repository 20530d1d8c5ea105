"""The ranking of a sweep's tasks, and how values and links are shown."""

from __future__ import annotations

import pytest

from cotenant.controller.domain import JobMetric, Phase
from cotenant.controller.present.jobs import COLUMNS, add_values
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.sweeps import SweepMetric, json_of, missing_metric, ranked_tasks
from cotenant.controller.wire import clients as wire
from tests.controller.cli.replies import job_view


def task(job_id: str, loss: float | None, phase: Phase = Phase.DONE, **parameters: str) -> wire.JobView:
    metrics = () if loss is None else (JobMetric(name="loss", value=loss, step=5),)
    return job_view(job_id, metrics=metrics, phase=phase, parameters=parameters)


TASKS = (
    task("1_0", 0.5, lr=".1", seed="0"),
    task("1_1", 0.1, Phase.FAILED, lr=".1", seed="1"),
    task("1_2", None, Phase.QUEUED, lr=".01", seed="0"),
    task("1_3", 0.2, Phase.RUNNING, lr=".01", seed="1"),
)


def test_the_best_come_first_then_those_without_a_value_then_those_that_failed() -> None:
    by = SweepMetric.read("loss")
    tasks = ranked_tasks(TASKS, by)
    assert [(each.rank, each.job.job_id) for each in tasks] == [
        (1, "1_3"), (2, "1_0"), (None, "1_2"), (None, "1_1"),
    ]  # fmt: skip
    assert [each.rank for each in ranked_tasks(TASKS, SweepMetric.read("loss:max"))][:2] == [1, 2]
    assert ranked_tasks(TASKS, SweepMetric.read("loss:max"))[0].job.job_id == "1_0"
    row = json_of(tasks[0], by)
    assert (row["value"], row["step"], row["parameters"]) == (0.2, 5, {"lr": ".01", "seed": "1"})
    assert json_of(tasks[2], by)["value"] is None


def test_a_metric_that_nobody_told_is_said_to_be_unknown() -> None:
    by = SweepMetric.read("f1:max")
    assert missing_metric(ranked_tasks(TASKS, by), by) == "no task has told a metric 'f1'; told were: loss"
    assert not missing_metric(ranked_tasks(TASKS, SweepMetric("loss")), SweepMetric("loss"))
    for text in ("f1:most", ":max", ""):
        with pytest.raises(Problem):
            SweepMetric.read(text)


def test_values_have_a_column_only_where_there_are_some() -> None:
    assert [each.title for each in add_values(COLUMNS, TASKS)][:3] == ["JOB", "NAME", "VALUES"]
    assert [each.title for each in add_values(COLUMNS, [job_view()])] == [each.title for each in COLUMNS]
