"""Pairs measured live on one CPU slot, and what a model learns from them: a whole turn of the wheel.

    python experiments/castor/live_pairs.py            about four minutes; the machine must be idle otherwise
    python experiments/castor/live_pairs.py --anyway   on a busy machine: it works, the numbers mean nothing

Jobs of a few lines that speak the job-side protocol: large and small matrix products, streams through memory,
Python loops, and loops like training ones that wait for their input. Each is profiled alone on one core by
the product's own profiler, then with every other, and with itself, on the same core; xi is the median step
time beside the other over that alone, of steps much longer than the kernel's time slice. The table is what
`cotenant predictor export` writes, and a model is judged on it with each pair left out in turn, beside the
duty-cycle rule and the mean.

A CPU slot time-slices, as a GPU without MPS does: what competes is time on the core, its caches and the
memory's bandwidth. It says nothing about streaming multiprocessors.

Writes `experiments/.cache/live_pairs.csv` and `docs/results/bench-live-pairs.md` (not with --anyway).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Final, NamedTuple

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec
import numpy as np

from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.indicators import INDICATOR_NAMES, Indicators, IndicatorStats
from cotenant.controller.domain.job import Job, JobSpec, Launch
from cotenant.controller.domain.pairs import PairTable
from cotenant.controller.domain.perf import Profile, duty_cycle_rule
from cotenant.controller.domain.reasons import because
from cotenant.controller.training import interference as training
from cotenant.controller.training.journal_pairs import Kinds
from cotenant.controller.training.judging import Both
from cotenant.controller.training.pair_rows import PairRows, read
from cotenant.profiler.ranks import RankCommand, Seat
from cotenant.profiler.run import ProfileFailed, RunPlan, SoloRun
from cotenant.profiler.solo import measure_solo
from experiments.shared import paths

CACHE: Final = paths.CACHE
PAGE: Final = paths.RESULTS / "bench-live-pairs.md"
PLAN: Final = RunPlan(
    accumulation_steps=(1,), warm_up_steps=3, steps_min=10, measured_s_min=4.0, deadline_s=40.0
)
IDLE_LOAD: Final = 0.4

LOOP: Final = """
import json, os, socket, sys, time
import numpy as np

kind, size, times, wait_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
line.connect(os.environ["COTENANT_SOCKET"])

def say(name, **fields):
    line.send(json.dumps({"v": 1, "m": name, "rank": 0, **fields}).encode())

side = 1 if kind == "python" else size
one, two = np.ones((side, side), np.float32), np.ones((side, side), np.float32)
say("hello", world_size=1, resumable=True, accumulates=False, step=0)
for step in range(1, 1000000):
    began_s = time.monotonic()
    if wait_s:
        time.sleep(wait_s)
    for _ in range(times):
        if kind == "product":
            np.dot(one, two)
        elif kind == "stream":
            np.add(one, two, out=one)
        else:
            sum(number * number for number in range(size))
    if step == 1:
        say("first_step", step=1)
    say("step", step=step, count=1, elapsed_s=time.monotonic() - began_s, s=1, loss=None)
"""


class Loop(NamedTuple):
    name: str
    kind: str
    size: int
    times: int
    """In one step: so many that a step is long beside a time slice."""
    wait_s: float = 0.0


LOOPS: Final = (
    Loop("product", "product", 900, 4),
    Loop("small-product", "product", 150, 800),
    Loop("stream", "stream", 3000, 15),
    Loop("python", "python", 100_000, 12),
    Loop("half-fed", "product", 600, 6, 0.05),
    Loop("starved", "product", 600, 2, 0.08),
    Loop("stream-fed", "stream", 2000, 15, 0.05),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine; writes no page")
    parser.add_argument("--seconds", type=float, default=PLAN.measured_s_min, help="measured, of each job")
    options = parser.parse_args()
    if os.getloadavg()[0] > IDLE_LOAD and not options.anyway:
        print(f"skipped at load {os.getloadavg()[0]:.1f}: others would be measured as well (or: --anyway)")
        return 0
    plan = msgspec.structs.replace(PLAN, measured_s_min=options.seconds)
    try:
        text, contended = measured(plan)
    except ProfileFailed as error:
        print(error, file=sys.stderr)
        return 1
    CACHE.mkdir(exist_ok=True)
    (CACHE / "live_pairs.csv").write_text(text)
    pairs = read(text.encode(), "live_pairs.csv", "measured by this script")
    page = told(pairs, contended)
    print(page)
    if not options.anyway:
        PAGE.write_text(page)
    return 0


# --- Measuring ---------------------------------------------------------------------------------------


def measured(plan: RunPlan) -> tuple[str, int]:
    """The table, and how many of the runs alone had to wait for others more than they should."""
    core = max(os.sched_getaffinity(0))
    kinds, table, contended = Kinds(), PairTable(), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as two:
        alone: dict[str, tuple[Job, float]] = {}
        for loop in LOOPS:
            run = measure(loop, core, folder, plan)
            contended += any("other processes" in note for note in run.notes)
            job = as_job(loop, run)
            kinds.learn(job, "cpu")
            alone[loop.name] = job, run.points[0].step_s
            print(f"{loop.name}: {1000 * run.points[0].step_s:.2f} ms, duty cycle {run.duty_cycle:.2f}")
        for one, other in combinations_with_replacement(LOOPS, 2):
            runs = two.map(measure, (one, other), (core, core), (folder, folder), (plan, plan))
            for loop, beside, run in zip((one, other), (other, one), runs, strict=True):
                mine, theirs = alone[loop.name], alone[beside.name]
                table.observe(mine[0], theirs[0], run.points[0].step_s / mine[1])
    text, _, _ = kinds.table(table.entries)
    return text, contended


def measure(loop: Loop, core: int, folder: str, plan: RunPlan) -> SoloRun:
    env = {"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    argv = (sys.executable, "-c", LOOP, loop.kind, *map(str, loop[2:]))
    run = measure_solo(RankCommand(argv=argv, workdir=folder, env=env), [Seat(cores=(core,))], plan=plan)
    if not run.points:
        raise ProfileFailed(f"{loop.name}: no whole step was measured ({'; '.join(run.notes)})")
    return run


def as_job(loop: Loop, run: SoloRun) -> Job:
    stats = {
        name: IndicatorStats(mean=summary.mean, variance=summary.variance, source=summary.source)
        for name, summary in run.indicators.items()
        if name in INDICATOR_NAMES
    }
    profile = Profile(
        duty_cycle=None if math.isnan(run.duty_cycle) else run.duty_cycle,
        indicators=Indicators(**{str(name): each for name, each in stats.items()}),
        source=run.source,
    )
    spec = JobSpec(job_id=JobId(loop.name), launch=Launch(argv=(loop.name,)))
    return Job(spec=spec, number=1, submitted_s=0.0, reason=because("submitted", "bench"), profile=profile)


# --- Telling -----------------------------------------------------------------------------------------


def told(pairs: PairRows, contended: int) -> str:
    table = training.PairColumns(pairs)
    answers = {f"model, settings {n}": left_out(table, n) for n in range(1, len(training.GRID) + 1)}
    folds = training.by_pair(pairs.groups, 0, len(pairs))
    answers["mean of the other pairs"] = training.out_of_fold_mean(pairs, folds)
    answers["duty-cycle rule"] = rule(pairs)
    lines = [
        "# Pairs measured live on a CPU slot",
        "",
        "Made by `python experiments/castor/live_pairs.py`; its top says what ran and what it does not show.",
        machine.sentences(numpy=np.__version__),
        f"{contended} of {len(LOOPS)} runs alone had to wait for other processes: 0 on an idle machine.",
        "",
        f"{len(pairs)} pairs, each left out in turn. The settings are those that `predictor train` tries.",
        "",
        "| xi from | RMSE, both jobs |",
        "| --- | --: |",
        *(f"| {name} | {training.overall(answer - pairs.xi):.3f} |" for name, answer in answers.items()),
        "",
        "| job 1 | job 2 | xi 1 | xi 2 |",
        "| --- | --- | --: | --: |",
        *(
            f"| {one} | {two} | {xi[0]:.2f} | {xi[1]:.2f} |"
            for (one, two), xi in zip(pairs.models, pairs.xi.tolist(), strict=True)
        ),
    ]
    return "\n".join(lines) + "\n"


def left_out(table: training.PairColumns, number: int) -> Both:
    folds = training.by_pair(table.pairs.groups, 0, len(table.pairs))
    return training.out_of_fold(table, folds, training.GRID[number - 1], 0)


def rule(pairs: PairRows) -> Both:
    at = pairs.names.index("gpu_util_pct")
    found = [
        duty_cycle_rule(Profile(duty_cycle=float(one) / 100), Profile(duty_cycle=float(two) / 100)).first
        for one, two in zip(pairs.first[:, at], pairs.second[:, at], strict=True)
    ]
    return np.repeat(np.array(found)[:, None], 2, axis=1)


if __name__ == "__main__":
    sys.exit(main())
