"""What sharing costs a job with a bound: real pairs on slots of one core, free and under bounds; and
simulated clusters whose hp jobs share within one.

    python experiments/unharmed/run.py [--only real|undeclared|simulated] [--pairs loader:compute,...]
                                       [--bounds 0,1.1,1.05] [--repeats 1] [--minutes 1] [--workers 1]
                                       [--page-only]

A real run: the protected job alone, then a guest beside it (`experiments/shared/live/beside.py`); kept in
`runs.jsonl` beside this file. An undeclared one: two jobs submitted as people do (`undeclared.py`); kept in
`undeclared.jsonl`. A simulated one: `simulated.py`, kept in experiments/.cache. A run that is there is not
made again, so a stop loses only the run that it met. Writes experiments/results/unharmed.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final
from unittest.mock import patch

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.client.connection import Client
from experiments.shared import kept_runs
from experiments.shared.live.beside import (
    SETTINGS,
    Beside,
    Lengths,
    Stretch,
    quantile,
    run_beside,
)
from experiments.shared.live.run import WentWrong, no_job_left
from experiments.unharmed import page, simulated, undeclared

RUNS: Final = Path(__file__).with_name("runs.jsonl")
UNDECLARED: Final = Path(__file__).with_name("undeclared.jsonl")
PAIRS: Final = (
    "loader:compute", "loader:loader", "loader:memory", "loader:accumulating",
    "bursty:compute", "bursty:memory", "accumulating:loader", "accumulating:compute",
    "memory:loader", "compute:loader", "compute:compute", "gang:loader",
)  # fmt: skip
ALONE_S: Final = 12.0
SETTLE_S: Final = 20.0
"""A new guest loads, and its pace is found."""
PARTED_S: Final = 5.0
"""A guest that made no step in the last seconds was parted from the job: its bound could not be kept."""
FREE: Final = 10.0
"""A bound that holds nobody back: the pair is as free as without one."""
MINUTE_S: Final = 60.0
MEMORY_MIB: Final = 100


def run(pair: str, bound: float, minutes: int) -> dict[str, Any]:
    """One run of a pair: step times in seconds, one entry per minute of sharing."""
    kind, guest_kind = pair.split(":")
    has_gang = "gang" in (kind, guest_kind)
    lengths = Lengths(ALONE_S, SETTLE_S, minutes * MINUTE_S)
    with (
        tempfile.TemporaryDirectory(prefix="ct-", ignore_cleanup_errors=True) as name,
        patch.dict(os.environ, {**SETTINGS, LOCK_DIR_ENV: f"{name}/locks"}),
        on_cores(None if has_gang else max(os.sched_getaffinity(0))),
    ):
        slots = len(os.sched_getaffinity(0))
        with (
            PrivateCluster(Path(name) / "c", f"cpu:{slots}") as cluster,
            Client(cluster.endpoint) as client,
            no_job_left(client),
        ):
            seen = run_beside(client, (kind, guest_kind), Path(name), bound or FREE, MEMORY_MIB, lengths)
    return {"pair": pair, "bound": bound, "processor": machine.facts()["processor"], **summarise(seen)}


@contextmanager
def on_cores(only: int | None) -> Iterator[None]:
    """What is started meanwhile has this core alone; None: all of them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if only is None else {only})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_undeclared(minutes: int) -> dict[str, Any]:
    """One run in which nothing is declared, under the default policy with its default settings."""
    with (
        tempfile.TemporaryDirectory(prefix="ct-", ignore_cleanup_errors=True) as name,
        patch.dict(os.environ, {LOCK_DIR_ENV: f"{name}/locks"}),
        on_cores(max(os.sched_getaffinity(0))),
        PrivateCluster(Path(name) / "c", "cpu:1", profile_s=undeclared.PROFILE_S) as cluster,
        Client(cluster.endpoint) as client,
        no_job_left(client),
    ):
        seen, waited = undeclared.run_undeclared(
            client, cluster.endpoint, Path(name), Lengths(ALONE_S, SETTLE_S, minutes * MINUTE_S)
        )
    facts = {"bound": undeclared.BOUND, "processor": machine.facts()["processor"], "load": os.getloadavg()[0]}
    return {"pair": undeclared.PAIR, **facts, **summarise(seen), **waited}


def summarise(seen: Beside) -> dict[str, Any]:
    """Returns what is kept of a run."""
    alone = seen.alone.steps(seen.mine)
    began_s, ended_s = seen.together
    minutes = [
        Stretch(began_s + MINUTE_S * number, min(ended_s, began_s + MINUTE_S * (number + 1)))
        for number in range(max(1, round(seen.together.length_s / MINUTE_S)))
    ]
    return {
        **{f"alone_{name}": value for name, value in percentiles(seen.alone.step_times(seen.mine)).items()},
        "busy": (alone[-1].busy_s - alone[0].busy_s) / (alone[-1].ended_s - alone[0].ended_s),
        "minutes": [percentiles(minute.step_times(seen.mine)) for minute in minutes],
        "guest_steps_per_s": seen.guest_steps_per_s,
        "parted": not any(step.ended_s > ended_s - PARTED_S for step in seen.guest),
        "told_p50": seen.bound.ratio_p50 if seen.bound is not None else None,
    }


def percentiles(step_s: Sequence[float]) -> dict[str, float]:
    return {"p50_s": median(step_s), "p99_s": quantile(step_s, 0.99), "mean_s": fmean(step_s)}


def read_runs(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def add_run(file: Path, run: dict[str, Any]) -> None:
    with file.open("a") as out:
        out.write(json.dumps(run) + "\n")
    print(run, flush=True)


def run_pairs(
    runs: list[dict[str, Any]], pairs: Sequence[str], bounds: Sequence[float], asked: argparse.Namespace
) -> None:
    """Adds to the runs those that are missing."""
    for repeat in range(asked.repeats):
        for pair in pairs:
            for bound in bounds:
                if sum((each["pair"], each["bound"]) == (pair, bound) for each in runs) > repeat:
                    continue
                try:
                    runs.append(run(pair, bound, asked.minutes))
                except WentWrong as error:
                    print(f"{pair} under {bound:g}: {error}", file=sys.stderr)
                    continue
                add_run(RUNS, runs[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--bounds", default="0,1.1,1.05", help="0: none")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--minutes", type=int, default=1, help="that the two train together")
    parser.add_argument("--only", choices=("real", "undeclared", "simulated"), help="run nothing else")
    parser.add_argument("--workers", type=int, default=1, help="simulations at once")
    parser.add_argument("--page-only", action="store_true", help="run nothing: only what was measured before")
    asked = parser.parse_args()
    runs, told = read_runs(RUNS), read_runs(UNDECLARED)
    parts = () if asked.page_only else (asked.only,) if asked.only else ("real", "undeclared", "simulated")
    if "real" in parts:
        run_pairs(runs, asked.pairs.split(","), list(map(float, asked.bounds.split(","))), asked)
    while "undeclared" in parts and len(told) < asked.repeats:
        told.append(run_undeclared(asked.minutes))
        add_run(UNDECLARED, told[-1])
    if "simulated" in parts:
        kept_runs.complete(
            simulated.cells(), simulated.load, simulated.run, workers=asked.workers, minutes=math.inf
        )
    found = [result for cell in simulated.cells() if (result := simulated.load(cell)) is not None]
    print(page.write(runs, told, found, machine.facts()))


if __name__ == "__main__":
    main()
