"""Alibaba's PAI of 2020: `pai_job_table.csv` and `pai_task_table.csv` (Weng et al., NSDI '22).

Rule: the released tables have no header. A job is all its tasks: its GPUs are the sum of instances x plan_gpu
(per cent of a GPU), its duration goes from the first task's launch to the last one's end. Its submission is
the job table's start_time. The instance table adds nothing that is needed here. `pai_group_tag_table.csv`,
where it lies beside them, gives the workload's tag, which becomes `model`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cotenant.controller.sim.traces.drafting import Draft, finish, from_first
from cotenant.controller.sim.traces.problems import TraceProblem
from cotenant.controller.sim.traces.table import TextTable, content, decoded, table
from cotenant.controller.sim.traces.trace import Floats, Labels, Trace

SOURCE = "Alibaba PAI 2020 (Weng et al., NSDI '22)"
JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem",
    "plan_gpu", "gpu_type",
)  # fmt: skip
TAG = ("inst_id", "user", "gpu_type_spec", "group", "workload")


def is_pai(path: Path) -> bool:
    """Whether this is a folder with PAI's tables, or one of them."""
    folder = path if path.is_dir() else path.parent
    return (path.is_dir() or path.name.startswith("pai_")) and _file(folder, "task") is not None


def read_pai(path: Path) -> Trace:
    """The tables in this folder, or beside this file.

    Raises:
        TraceProblem: a table is missing or broken, or no job is left.
    """
    folder = path if path.is_dir() else path.parent
    jobs = _needed(folder, "job", JOB, ("job_name", "inst_id", "user", "status", "start_time"))
    tasks = _needed(
        folder, "task", TASK, ("job_name", "inst_num", "start_time", "end_time", "plan_gpu", "gpu_type")
    )
    gpus, duration_s = _demand(jobs, tasks)
    return finish(
        Draft(
            name=str(folder),
            source=SOURCE,
            licence="CC-BY-4.0",
            lines=jobs.lines,
            submit_s=from_first(jobs.numbers("start_time")),
            duration_s=duration_s,
            gpus=gpus,
            job_ids=jobs.unique("job_name"),
            user=Labels.of(jobs.text("user")),
            model=Labels.of(_workloads(folder, jobs)),
            gpu_type=Labels.of(_gpu_types(jobs, tasks)),
            state=Labels.of(jobs.text("status")),
            excluded={},
            notes=[],
        )
    )


def _demand(jobs: TextTable, tasks: TextTable) -> tuple[Floats, Floats]:
    """GPUs and seconds of execution of each job. A task whose job is unknown is passed over."""
    number = {name: row for row, name in enumerate(jobs.unique("job_name"))}
    job = np.array([number.get(name, -1) for name in tasks.text("job_name")], np.int64)
    known = job >= 0
    instances, percent = tasks.numbers("inst_num", negative=False), tasks.numbers("plan_gpu", negative=False)
    gpus = np.zeros(len(jobs))
    np.add.at(gpus, job[known], np.nan_to_num(instances * percent / 100.0)[known])
    first_s, last_s = np.full(len(jobs), np.inf), np.full(len(jobs), -np.inf)
    np.fmin.at(first_s, job[known], tasks.numbers("start_time")[known])
    # An end that is missing makes the job's missing: it had not ended.
    end_s = tasks.numbers("end_time")[known]
    np.maximum.at(last_s, job[known], np.where(np.isnan(end_s), np.inf, end_s))
    span_s = np.full(len(jobs), np.nan)
    some = np.isfinite(first_s) & np.isfinite(last_s)
    span_s[some] = last_s[some] - first_s[some]
    return gpus, span_s


def _gpu_types(jobs: TextTable, tasks: TextTable) -> list[str]:
    """The type of the job's last task that names one."""
    of = {
        name: kind for name, kind in zip(tasks.text("job_name"), tasks.text("gpu_type"), strict=True) if kind
    }
    return [of.get(name, "") for name in jobs.text("job_name")]


def _workloads(folder: Path, jobs: TextTable) -> list[str]:
    if _file(folder, "group_tag") is None:
        return [""] * len(jobs)
    tags = _needed(folder, "group_tag", TAG, ("inst_id", "workload"))
    of = dict(zip(tags.text("inst_id"), tags.text("workload"), strict=True))
    return [of.get(instance, "") for instance in jobs.text("inst_id")]


def _file(folder: Path, kind: str) -> Path | None:
    for suffix in (".csv", ".csv.gz"):
        if (path := folder / f"pai_{kind}_table{suffix}").is_file():
            return path
    return None


def _needed(folder: Path, kind: str, header: tuple[str, ...], wanted: tuple[str, ...]) -> TextTable:
    path = _file(folder, kind)
    if path is None:
        hint = f"unpack pai_{kind}_table.tar.gz there"
        raise TraceProblem(f"there is no pai_{kind}_table.csv", file=str(folder), hint=hint)
    text = decoded(content(path), str(path))
    given = None if text.startswith(f"{header[0]},") else header
    return table(text, str(path), wanted=wanted, required=wanted, header=given)
