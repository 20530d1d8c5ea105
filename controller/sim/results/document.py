"""The results of a comparison as one JSON object, and as files for a closer look.

Rule: the same tasks give the same bytes; only `decision_ms`, `wall_s`, `cpu_s` and `thinking_s` are measured
on the machine and differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.controller.domain import csv_cells
from cotenant.controller.sim.compare import TaskRun
from cotenant.controller.sim.results.paired import paired_windows, policy_differences
from cotenant.controller.sim.world.outcome import RunResult
from cotenant.controller.sim.world.workload import Cluster, Workload
from cotenant.controller.system.files import output, write_output

SCHEMA: Final = "sim-compare/1"
MEASURED: Final = frozenset({"decision_ms", "wall_s", "cpu_s", "thinking_s"})
"""Fields that differ from one time to the next."""


def document(
    trace: str,
    runs: Sequence[TaskRun],
    *,
    options: Mapping[str, Any],
    not_run: Sequence[str] = (),
    whole: Workload | None = None,
) -> dict[str, Any]:
    """What `sim compare -o json` prints. `not_run`: labels of runs that an interrupt kept from starting.
    `whole`: what the runs are windows of."""
    workload, cluster = whole or runs[0].task.workload, runs[0].task.cluster
    compared = policy_differences if whole is None else paired_windows
    return {
        "schema": SCHEMA,
        "trace": trace,
        "workload": workload_facts(workload, cluster),
        "cluster": {"hosts": cluster.hosts, "gpus_per_host": cluster.gpus_per_host, "gpus": cluster.gpus},
        "options": dict(options),
        "interrupted": bool(not_run) or any(run.summary["interrupted"] for run in runs),
        "not_run": list(not_run),
        "paired": compared([run.summary for run in runs]),
        "runs": [run.summary for run in runs],
    }


def workload_facts(workload: Workload, cluster: Cluster) -> dict[str, Any]:
    load = workload.offered_load(cluster.gpus)
    return {
        "name": workload.name,
        "jobs": len(workload),
        "synthetic": workload.synthetic,
        "excluded": dict(sorted(workload.excluded.items())),
        "offered_load": load if math.isfinite(load) else None,
    }


def write_document(value: Mapping[str, Any], path: Path) -> None:
    write_output(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


_GIVEN: Final = ("job_id", "submit_s", "gpus", "model", "duration_s", "expected_s")
_TIMES: Final = ("jct_s", "wait_s", "load_s", "run_s", "pause_s", "rework_s", "futile_s")
_COUNTS: Final = ("finished", "preemptions", "futile_preemptions", "aborted_preemptions", "shared")


def write_jobs(outcome: RunResult, path: Path) -> None:
    """Writes one row per job; a cell is empty where a number does not exist (a job that has not finished)."""
    workload = outcome.workload
    n = len(workload)
    names = [workload.models[index] if index >= 0 else "" for index in workload.model.tolist()]
    columns: list[Sequence[object]] = [
        workload.job_ids or [str(row + 1) for row in range(n)],
        _seconds(workload.submit_s),
        workload.gpus.tolist(),
        names,
        _seconds(workload.duration_s),
        _seconds(workload.expected_s),
        *(_seconds(getattr(outcome, name)) for name in _TIMES),
        *(getattr(outcome, name).astype(int).tolist() for name in _COUNTS),
    ]
    with output(path) as beside, beside.open("w", newline="") as file:
        csv_cells.write_rows(file, ((*_GIVEN, *_TIMES, *_COUNTS), *zip(*columns, strict=True)))


def _seconds(values: np.ndarray[Any, Any]) -> list[csv_cells.Figure]:
    return [csv_cells.Figure("" if value != value else f"{value:.3f}") for value in values.tolist()]
