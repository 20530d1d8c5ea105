"""The Standard Workload Format of the Parallel Workloads Archive (Feitelson, 18 fields a line).

Rule: the format counts processors. They are taken as GPUs, `processors_per_gpu` of them as one: say so beside
results. Requested processors count, or the allocated ones where the request is unknown (-1).
"""

from __future__ import annotations

import numpy as np

from cotenant.controller.sim.traces.drafting import Draft, finish
from cotenant.controller.sim.traces.problems import TraceProblem
from cotenant.controller.sim.traces.table import TextTable
from cotenant.controller.sim.traces.trace import Floats, Labels, Trace

FIELDS = (
    "job", "submit", "wait", "run", "allocated processors", "processor time", "used memory",
    "requested processors", "requested time", "requested memory", "status", "user", "group", "executable",
    "queue", "partition", "preceding job", "think time",
)  # fmt: skip
STATES = {"0": "failed", "1": "completed", "5": "cancelled"}


def read_swf(text: str, *, name: str, processors_per_gpu: int = 1) -> Trace:
    """Raises TraceProblem where the text is not in the format, or no job is left."""
    if processors_per_gpu < 1:
        raise TraceProblem(f"{processors_per_gpu} processors per GPU make no sense", hint="use 1 or more")
    jobs = _table(text, name)
    requested, allocated = _known(jobs, "requested processors"), _known(jobs, "allocated processors")
    per_gpu = "as a GPU" if processors_per_gpu == 1 else f"{processors_per_gpu} of them as a GPU"
    return finish(
        Draft(
            name=name,
            source=f"{name} (Standard Workload Format, processors counted, {per_gpu})",
            lines=jobs.lines,
            submit_s=_known(jobs, "submit"),
            duration_s=_known(jobs, "run"),
            gpus=np.where(np.isnan(requested), allocated, requested) / processors_per_gpu,
            job_ids=jobs.unique("job"),
            user=_labels(jobs, "user"),
            vc=_labels(jobs, "partition"),
            organisation=_labels(jobs, "group"),
            state=Labels.of([STATES.get(status, "") for status in jobs.text("status")]),
            excluded={},
            notes=[],
        )
    )


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


def _known(jobs: TextTable, column: str) -> Floats:
    values = jobs.numbers(column)
    return np.where(values < 0.0, np.nan, values)


def _labels(jobs: TextTable, column: str) -> Labels:
    return Labels.of(["" if text == "-1" else text for text in jobs.text(column)])
