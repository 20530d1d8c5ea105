"""Logs of batch systems: Slurm's accounting, and the Standard Workload Format.

Slurm's is the output of `sacct --parsable2` (fields between bars, a header).

    sacct -a -X --parsable2 -S 2024-01-01 -E 2024-07-01 \\
        -o JobID,User,Account,Partition,State,Submit,Start,End,ElapsedRaw,AllocTRES,ReqTRES

Rule: GPUs are those that were allocated, or asked for where the job never got any. Accounts become
organisations, partitions VCs. Job steps are passed over.

SWF is the format of the Parallel Workloads Archive (Feitelson, 18 fields a line). Rule: it counts processors.
They are taken as GPUs, `processors_per_gpu` of them as one: say so beside results. Requested processors
count, or the allocated ones where the request is unknown (-1).
"""

from __future__ import annotations

import re

import numpy as np

from cotenant.controller.sim.traces.drafting import Source, elapsed_s, moments, moments_from_first
from cotenant.controller.sim.traces.table import TextTable, table
from cotenant.controller.sim.traces.trace import Floats, Labels, Trace, TraceProblem

SACCT = {
    "submit_s": "Submit",
    "job_ids": "JobID",
    "user": "User",
    "vc": "Partition",
    "organisation": "Account",
}
GPU_COLUMNS = ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")
"""In order of preference. The GRES fields are those of Slurm before 21.08."""
COMPUTED = (*GPU_COLUMNS, "State", "Start", "End", "ElapsedRaw", "Elapsed")
UNFINISHED = frozenset(("PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED"))
JOB_STEPS = "job steps"
_GPU = re.compile(r"(?:gres/)?gpu(?::([^:=,()]+))?[:=](\d{1,9})(?:\(.*\))?", re.ASCII)


def read_sacct(text: str, *, name: str) -> Trace:
    """Raises TraceProblem where the text is no such output, or no job is left."""
    source = Source(f"{name} (Slurm accounting)", SACCT, {"submit_s": moments_from_first})
    wanted = (*SACCT.values(), *COMPUTED)
    rows = table(text, name, wanted=wanted, required=("JobID", "Submit"), delimiter="|", quotes=False)
    if not any(column in rows for column in GPU_COLUMNS):
        raise TraceProblem("has no column with GPUs", file=name, line=1, hint="add AllocTRES to sacct's -o")
    jobs = _rows_without_steps(rows)
    states = tuple((text.split() or [""])[0] for text in jobs.text("State"))
    unfinished = np.array([state in UNFINISHED for state in states], np.bool_)
    gpus, types = _gpus(jobs)
    return source.trace(
        jobs,
        name,
        excluded={JOB_STEPS: len(rows) - len(jobs)} if len(jobs) < len(rows) else {},
        duration_s=np.where(unfinished, np.nan, _durations(jobs)),
        gpus=gpus,
        gpu_type=Labels.make(types),
        state=Labels.make(states),
    )


def _rows_without_steps(rows: TextTable) -> TextTable:
    """Job steps are `123.batch`, `123.0`; array tasks `123_4` and components `123+1` are jobs."""
    kept = [row for row, job_id in enumerate(rows.text("JobID")) if "." not in job_id]
    if len(kept) == len(rows):
        return rows
    columns = {name: tuple(column[row] for row in kept) for name, column in rows.columns.items()}
    return TextTable(file=rows.file, columns=columns, lines=rows.lines[kept])


def _durations(jobs: TextTable) -> Floats:
    if "ElapsedRaw" in jobs:
        return jobs.numbers("ElapsedRaw", negative=False)
    if "Elapsed" in jobs:
        return jobs.parse_column("Elapsed", elapsed_s, "a time like 1-02:03:04")
    if "Start" in jobs and "End" in jobs:
        return moments(jobs, "End") - moments(jobs, "Start")
    hint = "add ElapsedRaw to sacct's -o"
    raise TraceProblem("has no column with durations", file=jobs.file, line=1, hint=hint)


def _gpus(jobs: TextTable) -> tuple[Floats, list[str]]:
    """GPUs of each job, and their type where one is named."""
    columns = [jobs.text(column) for column in GPU_COLUMNS if column in jobs]
    chosen = [next(filter(None, texts), "") for texts in zip(*columns, strict=True)]
    read = {text: gpus_of(text) for text in set(chosen)}
    return np.array([read[text][0] for text in chosen], np.float64), [read[text][1] for text in chosen]


def gpus_of(tres: str) -> tuple[float, str]:
    """Count and type in `billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G`, or `gpu:a100:2`.

    The untyped entry is the sum of the typed ones; several types give none.
    """
    total, typed, types = 0, 0, set()
    for entry in tres.split(","):
        if found := _GPU.fullmatch(entry.strip()):
            if found[1]:
                typed += int(found[2])
                types.add(found[1])
            else:
                total += int(found[2])
    return float(total or typed), next(iter(types)) if len(types) == 1 else ""


FIELDS = (
    "job", "submit", "wait", "run", "allocated processors", "processor time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "executable",
    "queue", "partition", "preceding job", "think time",
)  # fmt: skip
STATES = {"0": "failed", "1": "completed", "5": "cancelled"}


def _known_values(jobs: TextTable, column: str) -> Floats:
    """Numbers, of which one below 0 is unknown."""
    values = jobs.numbers(column)
    return np.where(values < 0.0, np.nan, values)


def _known_labels(jobs: TextTable, column: str) -> Labels:
    return Labels.make(["" if text == "-1" else text for text in jobs.text(column)])


def _states(jobs: TextTable, column: str) -> Labels:
    return Labels.make([STATES.get(status, "") for status in jobs.text(column)])


SWF = {
    "submit_s": "submit",
    "duration_s": "run",
    "job_ids": "job",
    "user": "user",
    "vc": "partition",
    "organisation": "group",
    "state": "status",
}
NOT_PLAIN = {"submit_s": _known_values, "duration_s": _known_values, "state": _states} | dict.fromkeys(
    ("user", "vc", "organisation"), _known_labels
)


def read_swf(text: str, *, name: str, processors_per_gpu: int = 1) -> Trace:
    """Raises TraceProblem where the text is not in the format, or no job is left."""
    if processors_per_gpu < 1:
        raise TraceProblem(f"{processors_per_gpu} processors per GPU make no sense", hint="use 1 or more")
    jobs = _table(text, name)
    requested, allocated = (
        _known_values(jobs, "requested processors"),
        _known_values(jobs, "allocated processors"),
    )
    per_gpu = "as a GPU" if processors_per_gpu == 1 else f"{processors_per_gpu} of them as a GPU"
    source = Source(f"{name} (Standard Workload Format, processors counted, {per_gpu})", SWF, NOT_PLAIN)
    gpus = np.where(np.isnan(requested), allocated, requested) / processors_per_gpu
    return source.trace(jobs, name, gpus=gpus)


def _table(text: str, file: str) -> TextTable:
    rows, lines = [], []
    for line, content in enumerate(text.split("\n"), 1):
        fields = content.split()
        if not fields or fields[0].startswith(";"):
            continue
        if len(fields) != len(FIELDS):
            what = f"has {len(fields)} fields, the Standard Workload Format has {len(FIELDS)}"
            raise TraceProblem(what, file=file, line=line)
        rows.append(fields)
        lines.append(line)
    columns = list(zip(*rows, strict=True)) or [()] * len(FIELDS)
    return TextTable(
        file=file, columns=dict(zip(FIELDS, columns, strict=True)), lines=np.array(lines, np.int64)
    )
