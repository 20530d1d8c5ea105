"""Traces that clusters have published, each in the format of its own: Philly, Helios, PAI.

Microsoft's Philly: `cluster_job_log` of msr-fiddle/philly-traces (Jeon et al., ATC '19), JSON. Rule: a job's
duration is the sum of its attempts, for Philly retried on its own; its GPUs are those of its last attempt. A
job whose last attempt has no end was still running when the log was taken.

SenseTime's Helios: `cluster_log.csv` of S-Lab-System-Group/HeliosData (Hu et al., SC '21). Rule: `duration`
is the source's own (end - start, in seconds); submission is counted from the file's first.

Alibaba's PAI of 2020: `pai_job_table.csv` and `pai_task_table.csv` (Weng et al., NSDI '22). Rule: the
released tables have no header. A job is all its tasks: its GPUs are the sum of instances x plan_gpu (per cent
of a GPU), its duration goes from the first task's launch to the last one's end. Its submission is the job
table's start_time. The instance table adds nothing that is needed here. `pai_group_tag_table.csv`, where it
lies beside them, gives the workload's tag, which becomes `model`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cotenant.controller.sim.traces import drafting
from cotenant.controller.sim.traces.table import TextTable, content, decode_utf_8, table
from cotenant.controller.sim.traces.trace import Floats, Labels, Trace, TraceProblem, show_value

PHILLY = "Microsoft Philly 2017 (Jeon et al., ATC '19)"
NEVER_STARTED = "never started"


class _Job(NamedTuple):
    job_id: str
    user: str
    vc: str
    state: str
    submit_s: float
    duration_s: float
    gpus: float


def read_philly(text: str, *, name: str) -> Trace:
    """Raises TraceProblem where the text is no Philly log, or no job is left."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise TraceProblem(f"is not JSON: {error}", file=name, line=line) from None
    except RecursionError:
        raise TraceProblem("is not a list of jobs: it is nested too deeply", file=name) from None
    if not isinstance(entries, list):
        raise TraceProblem("is not a list of jobs", file=name)
    jobs = [_job(entry, name, number) for number, entry in enumerate(entries, 1)]
    started = [number for number, job in enumerate(jobs) if job.gpus > 0.0]
    submit_s = drafting.times_from_first(np.array([job.submit_s for job in jobs]))
    columns = dict(zip(_Job._fields, zip(*(jobs[number] for number in started), strict=True), strict=False))
    given: dict[str, Any] = {"name": name, "source": PHILLY, "licence": "CC-BY-4.0"}
    given |= {field: np.array(columns.get(field, ()), np.float64) for field in ("duration_s", "gpus")}
    given |= {field: Labels.make(columns.get(field, ())) for field in ("user", "vc", "state")}
    given |= {"submit_s": submit_s[started], "job_ids": _unique(columns.get("job_id", ()), name)}
    left_out = {NEVER_STARTED: len(jobs) - len(started)} if len(started) < len(jobs) else {}
    return drafting.make_trace(given, np.array(started, np.int64) + 1, left_out)


def _job(entry: object, file: str, number: int) -> _Job:
    """Reads one entry of the list; `number` counts from 1 and stands for the line in messages."""
    try:
        if not isinstance(entry, dict):
            raise ValueError("it is no object")
        attempts = entry.get("attempts")
        if not isinstance(attempts, list) or not all(isinstance(each, dict) for each in attempts):
            raise ValueError("attempts is no list of attempts")
        duration_s, gpus = _execution(attempts)
        return _Job(
            job_id=_text(entry, "jobid"),
            user=_text(entry, "user"),
            vc=_text(entry, "vc"),
            state=_text(entry, "status"),
            submit_s=_time(entry, "submitted_time"),
            duration_s=duration_s,
            gpus=gpus,
        )
    except ValueError as error:
        raise TraceProblem(f"job {number} of the list: {error}", file=file) from None


def _execution(attempts: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds over all attempts (NaN if the last has no end), and the GPUs of the last that names some."""
    duration_s, gpus = 0.0, 0.0
    for attempt in attempts:
        detail = attempt.get("detail") or []
        if not isinstance(detail, list) or not all(isinstance(host, dict) for host in detail):
            raise ValueError("an attempt's detail is no list of hosts")
        devices = [host.get("gpus") or [] for host in detail]
        if not all(isinstance(each, list) for each in devices):
            raise ValueError("a host's gpus is no list")
        gpus = float(sum(map(len, devices))) or gpus
        started_s, ended_s = _time(attempt, "start_time"), _time(attempt, "end_time")
        lasted_s = ended_s - started_s
        last = attempt is attempts[-1]
        duration_s += lasted_s if last or not math.isnan(lasted_s) else 0.0
    return duration_s, gpus


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value


def _time(entry: Mapping[str, Any], key: str) -> float:
    text = _text(entry, key)
    try:
        return drafting.clock_s(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{key} {show_value(text)} is not {drafting.CLOCK_TIME}") from None


def _unique(ids: tuple[str, ...], file: str) -> tuple[str, ...]:
    if not all(ids):
        return ()
    if len(set(ids)) != len(ids):
        twice, _ = Counter(ids).most_common(1)[0]
        raise TraceProblem(f"jobid {show_value(twice)} is there twice", file=file)
    return ids


REQUIRED = {"submit_s": "submit_time", "duration_s": "duration", "gpus": "gpu_num"}
HELIOS = drafting.Source(
    "SenseTime Helios 2020 (Hu et al., SC '21)",
    {**REQUIRED, "job_ids": "job_id", "user": "user", "vc": "vc", "state": "state"},
    {"submit_s": drafting.moments_from_first},
    licence="CC-BY-4.0",
)


def read_helios(text: str, *, name: str) -> Trace:
    """Raises TraceProblem where the text is no Helios log, or no job is left."""
    rows = table(text, name, wanted=tuple(HELIOS.columns.values()), required=tuple(REQUIRED.values()))
    return HELIOS.trace(rows, name)


PAI = drafting.Source(
    "Alibaba PAI 2020 (Weng et al., NSDI '22)",
    {"submit_s": "start_time", "job_ids": "job_name", "user": "user", "state": "status"},
    {"submit_s": lambda jobs, column: drafting.times_from_first(jobs.numbers(column))},
    licence="CC-BY-4.0",
)
JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
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
    jobs = _required_table(folder, "job", JOB, ("job_name", "inst_id", "user", "status", "start_time"))
    tasks = _required_table(
        folder, "task", TASK, ("job_name", "inst_num", "start_time", "end_time", "plan_gpu", "gpu_type")
    )
    gpus, duration_s = _demand(jobs, tasks)
    return PAI.trace(
        jobs,
        str(folder),
        duration_s=duration_s,
        gpus=gpus,
        model=Labels.make(_workloads(folder, jobs)),
        gpu_type=Labels.make(_gpu_types(jobs, tasks)),
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
    tags = _required_table(folder, "group_tag", TAG, ("inst_id", "workload"))
    of = dict(zip(tags.text("inst_id"), tags.text("workload"), strict=True))
    return [of.get(instance, "") for instance in jobs.text("inst_id")]


def _file(folder: Path, kind: str) -> Path | None:
    for suffix in (".csv", ".csv.gz"):
        if (path := folder / f"pai_{kind}_table{suffix}").is_file():
            return path
    return None


def _required_table(folder: Path, kind: str, header: tuple[str, ...], wanted: tuple[str, ...]) -> TextTable:
    path = _file(folder, kind)
    if path is None:
        hint = f"unpack pai_{kind}_table.tar.gz there"
        raise TraceProblem(f"there is no pai_{kind}_table.csv", file=str(folder), hint=hint)
    text = decode_utf_8(content(path), str(path))
    given = None if text.startswith(f"{header[0]},") else header
    return table(text, str(path), wanted=wanted, required=wanted, header=given)
