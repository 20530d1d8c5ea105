"""The runs behind results/rltune.md, one row each of a CSV beside the page.

Rule: a row is added when its window has been simulated under its policy and is never changed; a stop loses
nothing. Every policy gets the same windows, each with what sjf had left when it begins.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.sim import policies_named, simulate
from experiments.rltune.training import TraceParts, TrainingOptions

POLICIES: Final = (
    "sjf", "ssf", "rltune", "scorer", "fifo", "f1", "wfp3", "unicep", "qssf", "slurm-multifactor",
    "fifo:backfill=easy", "slurm-multifactor:backfill=easy",
)  # fmt: skip
TRAINED: Final = ("philly/6c71a0", "philly/b436b2", "philly/ee9e8c")
"""Of the bundled models; their last tenth was kept out."""
UNSEEN: Final = ("philly/6214e9", "philly/103959", "philly/0e4a51")
ESTIMATES: Final = ("exact", "lognormal:0.7", "limit")
WINDOWS: Final = 5
"""Of each trace and kind of estimates."""
JOBS: Final = 256
LOAD: Final = 0.7


class Cell(NamedTuple):
    """Windows of one trace."""

    trace: str
    estimates: str
    seed: int


class Row(NamedTuple):
    """One window under one policy, its 256 jobs counted. Means; times in seconds."""

    cell: Cell
    window: int
    policy: str
    wait_s: float
    bsld: float
    jct_s: float
    p99_wait_s: float
    busy_ratio: float


def cells(seeds: int) -> list[Cell]:
    """Exact estimates have one seed: nothing is drawn that these orders look at."""
    return [
        Cell(trace, estimates, seed)
        for seed in range(seeds)
        for estimates in ESTIMATES
        if seed == 0 or estimates != "exact"
        for trace in (*TRAINED, *UNSEEN)
    ]


@cache
def parts_of(cell: Cell) -> TraceParts:
    kind, _, sigma = cell.estimates.partition(":")
    return TraceParts(
        cell.trace,
        TrainingOptions(
            traces=(cell.trace,), load=LOAD, seed=cell.seed, window_jobs=JOBS, noise=float(sigma or 0.0),
            limits=kind == "limit",
        ),
    )  # fmt: skip


def run(cell: Cell, policies: Sequence[str]) -> list[Row]:
    """In a process of its own: the last tenth of a trace that was trained on; of others, as of both, where
    that is too little, the last windows that there are."""
    parts, found = parts_of(cell), []
    jobs = len(parts.whole.workload)
    first = min(int(0.9 * jobs), jobs - JOBS)
    if cell.trace in UNSEEN:
        first = min(int(0.5 * jobs), first)
    for window, begin in enumerate(np.linspace(first, jobs - JOBS, WINDOWS).astype(int).tolist()):
        part = parts.window_at(begin)
        for text in policies:
            (choice,) = policies_named(text)
            outcome = simulate(
                part.task.workload, part.task.cluster, choice.name, choice.parameters,
                physics=part.task.physics, seed=cell.seed,
            )  # fmt: skip
            counts = slice(part.warm, None)
            slowdown = outcome.jct_s / np.maximum(outcome.workload.duration_s, 10.0)
            found.append(
                Row(
                    cell, window, text, float(outcome.wait_s[counts].mean()),
                    float(np.maximum(slowdown, 1.0)[counts].mean()), float(outcome.jct_s[counts].mean()),
                    float(np.percentile(outcome.wait_s[counts], 99)),
                    outcome.busy_gpu_s / (outcome.makespan_s * outcome.cluster.gpus),
                )
            )  # fmt: skip
    return found


def complete(file: Path, seeds: int, workers: int, minutes: float) -> bool:
    """Runs what the file lacks until the time is over, whole cells; whether all is there."""
    have = {row.cell for row in load(file)}
    missing = [cell for cell in cells(seeds) if cell not in have]
    file.parent.mkdir(parents=True, exist_ok=True)
    began_s, upcoming = time.monotonic(), iter(missing)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        while time.monotonic() - began_s < 60.0 * minutes:
            batch = [cell for _, cell in zip(range(workers), upcoming, strict=False)]
            if not batch:
                break
            for future in as_completed([pool.submit(run, cell, POLICIES) for cell in batch]):
                _add(file, future.result())
            print(f"\r{len({row.cell for row in load(file)})}/{len(cells(seeds))} cells ", end="", flush=True)
    print()
    return not {*cells(seeds)} - {row.cell for row in load(file)}


def _add(file: Path, rows: Sequence[Row]) -> None:
    fresh = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        if fresh:
            writer.writerow([*Cell._fields, *Row._fields[1:]])
        for row in rows:
            numbers = [f"{value:.6g}" if isinstance(value, float) else value for value in row[1:]]
            writer.writerow([*row.cell, *numbers])


def load(file: Path) -> list[Row]:
    return list(_rows(file)) if file.exists() else []


def _rows(file: Path) -> Iterator[Row]:
    with file.open(newline="") as opened:
        for record in csv.DictReader(opened):
            yield Row(
                Cell(record["trace"], record["estimates"], int(record["seed"])), int(record["window"]),
                record["policy"], *(float(record[name]) for name in Row._fields[3:]),
            )  # fmt: skip
