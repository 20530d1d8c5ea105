"""The runs behind results/patient.md, one row each of a CSV beside the page.

Rule: a row is added when its run has finished and is never changed, so a stop loses nothing; the policies of
a cell get the same jobs.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.sim import Scenario, policies_named, scenario, simulate

NEW: Final = "patient"
OLD: Final = "patient:gang=each,width_power=1"
"""What it was before."""
SET_ONLY: Final = "patient:gang=wait,width_power=1"
VICTIM: Final = "patient:waits_load=victim"
FULL: Final = "srtf-full"
POLICIES: Final = ((NEW, OLD, FULL), (SET_ONLY, VICTIM))
"""Those that everything rests on are run first."""

HOSTS: Final = {
    "103959": (1, 2, 3), "e13805": (4, 5), "ee9e8c": (7, 10), "0e4a51": (2, 4), "b436b2": (4, 8),
    "6c71a0": (4, 8), "ed69ec": (1,), "6214e9": (8,),
}  # fmt: skip
"""Of eight GPUs, so that each VC is seen from overload to little load."""
WINDOW_JOBS: Final = 400
WINDOWS: Final = 3
WHOLE: Final = (("103959", 1), ("103959", 2), ("103959", 3), ("e13805", 4), ("e13805", 5), ("e13805", 6))
"""Where patient lost, from the first job to the last."""
WIDE_HOSTS: Final = (18, 20, 24)


class Cell(NamedTuple):
    """Jobs and a cluster. `kind`: window, whole, or wide (a trace of whole-cluster gangs, given by name)."""

    kind: str
    trace: str
    hosts: int
    first: int
    jobs: int
    load_times: float = 1.0


class Row(NamedTuple):
    """One run. Times in seconds."""

    cell: Cell
    policy: str
    load: float
    mean_s: float
    median_s: float
    p99_s: float
    preemptions: int
    futile: int
    cpu_s: float


def cells(wide: str | None) -> Iterator[Cell]:
    """All there are; the trace of wide gangs only if one is given."""
    for vc, hosts in WHOLE:
        yield Cell("whole", f"philly/{vc}", hosts, 0, len(scenario.open_trace(f"philly/{vc}")))
    if wide is not None:
        n = len(scenario.open_trace(wide))
        for count in WIDE_HOSTS:
            yield Cell("wide", Path(wide).name, count, 0, n)
        yield Cell("wide", Path(wide).name, WIDE_HOSTS[-1], 0, n, 0.1)
    for number in range(WINDOWS):
        for vc, hosts_of in HOSTS.items():
            size = min(WINDOW_JOBS, len(scenario.open_trace(f"philly/{vc}")) // WINDOWS)
            for hosts in hosts_of:
                yield Cell("window", f"philly/{vc}", hosts, number * size, size)


def run(cell: Cell, policy: str, trace: str) -> Row:
    """In a process of its own."""
    began_s = time.process_time()
    opened = scenario.open_trace(trace)
    asked = Scenario(
        trace=trace,
        from_s=float(opened.submit_s[cell.first]) if cell.first else None,
        jobs=cell.jobs,
        hosts=cell.hosts,
        load_time_scale=cell.load_times,
    )
    (choice,) = policies_named(policy)
    (task,) = scenario.tasks(asked, [choice], [0])
    outcome = simulate(task.workload, task.cluster, choice.name, choice.parameters, physics=task.physics)
    assert outcome.finished.all()
    jct_s = outcome.jct_s
    return Row(
        cell,
        policy,
        task.workload.offered_load(task.cluster.gpus),
        float(jct_s.mean()),
        float(np.median(jct_s)),
        float(np.quantile(jct_s, 0.99)),
        int(outcome.preemptions.sum()),
        int(outcome.futile_preemptions.sum()),
        time.process_time() - began_s,
    )


def complete(file: Path, wide: str | None, workers: int) -> None:
    """Run what the file lacks, and add it."""
    have = {(row.cell, row.policy) for row in load(file)}
    every = list(cells(wide))
    asked = [(cell, policy) for policies in POLICIES for cell in every for policy in policies]
    missing = [one for one in asked if one not in have]
    if not missing:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        begun = [pool.submit(run, cell, policy, _name(cell, wide)) for cell, policy in missing]
        try:
            for number, future in enumerate(begun, 1):
                _add(file, future.result())
                print(f"\r{number}/{len(begun)} runs ", end="", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    print()


def _name(cell: Cell, wide: str | None) -> str:
    return wide if cell.kind == "wide" and wide is not None else cell.trace


def _add(file: Path, row: Row) -> None:
    fresh = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        if fresh:
            writer.writerow([*Cell._fields, *Row._fields[1:]])
        numbers = [f"{value:.6g}" if isinstance(value, float) else value for value in row[1:]]
        writer.writerow([*row.cell, *numbers])


def load(file: Path) -> Sequence[Row]:
    """What was run."""
    if not file.exists():
        return []
    with file.open(newline="") as opened:
        return [_row(record) for record in csv.DictReader(opened)]


def _row(record: dict[str, str]) -> Row:
    cell = Cell(
        record["kind"],
        record["trace"],
        int(record["hosts"]),
        int(record["first"]),
        int(record["jobs"]),
        float(record["load_times"]),
    )
    return Row(
        cell,
        record["policy"],
        float(record["load"]),
        float(record["mean_s"]),
        float(record["median_s"]),
        float(record["p99_s"]),
        int(record["preemptions"]),
        int(record["futile"]),
        float(record["cpu_s"]),
    )
