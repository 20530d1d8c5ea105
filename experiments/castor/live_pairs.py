"""Pairs measured live on one CPU slot, and what a model learns from them: a whole turn of the wheel.

    python experiments/castor/live_pairs.py            about half an hour; the machine must be idle otherwise
    python experiments/castor/live_pairs.py --anyway   on a busy machine: it works, the numbers mean nothing

Jobs of a few lines: large and small matrix products, streams through memory, Python loops, and loops like
training ones that wait for their input. All runs through the product, in a private cluster with slots of one
core, of which all but one are held by a job that sleeps: each loop is profiled alone, then runs beside every
other, and itself, under `sjf-ffs`, until the controller has seen enough of the pair. The table is what
`cotenant predictor export` makes of the journal, and a model is judged on it with each pair left out in turn,
beside the duty-cycle rule and the mean.

A CPU slot time-slices, as a GPU without MPS does: what competes is time on the core, its caches and the
memory's bandwidth. It says nothing about streaming multiprocessors.

Writes `experiments/.cache/live_pairs.csv` and `experiments/results/bench-live-pairs.md` (not with --anyway).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Final, NamedTuple

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine
import msgspec
import numpy as np

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.cli.demo.cluster import PrivateCluster, ProcessStartFailed
from cotenant.controller.cli.demo.measuring import NotMeasured, job_environment, measure_profiles
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ENDED, JobId, JobSpec, Launch
from cotenant.controller.performance import Profile, duty_cycle_rule
from cotenant.controller.training import measured_pairs
from cotenant.controller.wire import clients as wire
from experiments.castor.interference import training
from experiments.castor.interference.errors import Both
from experiments.castor.interference.pair_rows import PairRows, read
from experiments.shared import paths

CACHE: Final = paths.CACHE
PAGE: Final = paths.RESULTS / "bench-live-pairs.md"
PROFILE_S: Final = 8.0
IDLE_LOAD: Final = 0.4
SEEN_MIN: Final = 1
"""Observations of each job beside the other: each is a median over its steps of some seconds, and where that
does not change there is one a minute."""
PAIR_S_MAX: Final = 240.0
LOOK_S: Final = 0.5

LOOP: Final = """#!{python}
import time

import numpy as np
from cotenant import checkpoint

kind, size, times, wait_s = {kind!r}, {size}, {times}, {wait_s}
side = 1 if kind == "python" else size
one, two = np.ones((side, side), np.float32), np.ones((side, side), np.float32)
state = checkpoint.Session(accumulates=False)
while True:
    if wait_s:
        time.sleep(wait_s)
    for _ in range(times):
        if kind == "product":
            np.dot(one, two)
        elif kind == "stream":
            np.add(one, two, out=one)
        else:
            sum(number * number for number in range(size))
    state.step_done()
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
    parser.add_argument("--seconds", type=float, default=PROFILE_S, help="of each job's profile")
    parser.add_argument("--loops", nargs="+", choices=[loop.name for loop in LOOPS], help="only these")
    options = parser.parse_args()
    if os.getloadavg()[0] > IDLE_LOAD and not options.anyway:
        print(f"skipped at load {os.getloadavg()[0]:.1f}: others would be measured as well (or: --anyway)")
        return 0
    try:
        text = measured(
            [loop for loop in LOOPS if loop.name in (options.loops or loop.name)], options.seconds
        )
    except (NotMeasured, ProcessStartFailed) as error:
        print(error, file=sys.stderr)
        return 1
    CACHE.mkdir(exist_ok=True)
    (CACHE / "live_pairs.csv").write_text(text)
    pairs = read(text.encode(), "live_pairs.csv", "measured by this script")
    page = told(pairs)
    print(page)
    if not options.anyway:
        PAGE.write_text(page)
    return 0


# --- Measuring ---------------------------------------------------------------------------------------


def measured(loops: Sequence[Loop], profile_s: float) -> str:
    """The table, from the journal of a cluster of its own."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="cotenant-live-") as name:
        folder = Path(name)
        os.environ[LOCK_DIR_ENV] = str(folder / "locks")
        with (
            PrivateCluster(folder, f"cpu:{cores}", profile_s=profile_s) as cluster,
            Client(cluster.endpoint) as client,
        ):
            client.ask(wire.SetPolicy(name="sjf-ffs", parameters={"part": False}))
            holder = [submit(client, sleeping(cores - 1, folder))] if cores > 1 else []
            specs = {loop.name: job_of(loop, folder) for loop in loops}
            found = measure_profiles(cluster, list(specs.values()), say)
            for pair in combinations_with_replacement(loops, 2):
                together(
                    client, *(msgspec.structs.replace(specs[p.name], profile=found[p.name]) for p in pair)
                )
            cancel(client, holder)
        text, _, _ = measured_pairs(folder / "controller")
    return text


def say(name: str, profile: Profile) -> None:
    point = profile.point_at(1)
    assert point is not None
    print(f"{name}: {1000 * point.step_s:.2f} ms, duty cycle {profile.duty_cycle or 0.0:.2f}", flush=True)


def job_of(loop: Loop, folder: Path) -> JobSpec:
    """A program of that name: what tells kinds of jobs apart is their command."""
    program = folder / loop.name
    program.write_text(LOOP.format(python=sys.executable, **loop._asdict()))
    program.chmod(0o755)
    env = {**job_environment(), "OPENBLAS_NUM_THREADS": "1"}
    launch = Launch(argv=(str(program),), workdir=str(folder), env=env)
    return JobSpec(job_id=JobId("new-0"), name=loop.name, batch_size=1, launch=launch, share="max=none")


def sleeping(devices: int, folder: Path) -> JobSpec:
    """Holds all slots but one."""
    launch = Launch(argv=("sleep", "infinity"), workdir=str(folder), env=job_environment())
    return JobSpec(
        job_id=JobId("new-0"),
        name="sleep",
        gpus_min=devices,
        gpus_max=devices,
        share="never",
        profiling="never",
        launch=launch,
    )


def submit(client: Client, spec: JobSpec) -> JobId:
    return client.ask(wire.Submit(specs=(spec,))).job_ids[0]


def cancel(client: Client, job_ids: Sequence[JobId]) -> None:
    if job_ids:
        client.ask(wire.ChangeJobs(verb="cancel", job_ids=tuple(job_ids)))
        client.ask(wire.WaitJobs(job_ids=tuple(job_ids), timeout_s=PAIR_S_MAX))


def together(client: Client, one: JobSpec, other: JobSpec) -> None:
    """Both on the one slot, until the controller has seen enough.

    Raises:
        NotMeasured: it has not, after a long time.
    """
    job_ids = [submit(client, one), submit(client, other)]
    stand = "nothing was seen of them"
    for _ in range(int(PAIR_S_MAX / LOOK_S)):
        jobs = client.ask(wire.WaitJobs(job_ids=tuple(job_ids), timeout_s=LOOK_S)).jobs
        stand = "; ".join(f"{job.name} is {job.phase}, {job.reason}" for job in jobs)
        if any(job.phase in ENDED for job in jobs):
            break
        if min(seen(client, one.name, other.name)) >= SEEN_MIN:
            cancel(client, job_ids)
            return
    raise NotMeasured(f"not seen often enough beside each other: {stand}")


def seen(client: Client, one: str, other: str) -> tuple[int, int]:
    """How often each was seen beside the other."""
    for pair in client.ask(wire.ListPairs()).pairs:
        # The controller names them by command, without folders, and batch.
        if {name.partition(",")[0] for name in (pair.first, pair.second)} == {one, other}:
            return pair.first_count, pair.first_count if one == other else pair.second_count
    return 0, 0


# --- Telling -----------------------------------------------------------------------------------------


def told(pairs: PairRows) -> str:
    table = training.PairColumns(pairs)
    answers = {f"model, settings {n}": left_out(table, n) for n in range(1, len(training.GRID) + 1)}
    folds = training.pair_folds(pairs.groups, 0, len(pairs))
    answers["mean of the other pairs"] = training.out_of_fold_mean(pairs, folds)
    answers["duty-cycle rule"] = rule(pairs)
    errors = {name: training.overall(answer - pairs.xi) for name, answer in answers.items()}
    best = min(error for name, error in errors.items() if name.startswith("model"))
    of_rule = errors["duty-cycle rule"]
    lines = [
        "# Pairs measured live on a CPU slot",
        "",
        f"Of {len(pairs)} pairs measured on one CPU slot, each left out in turn, the best model predicts xi",
        f"with an RMSE of {best:.3f}, and the duty-cycle rule, which is not trained, with {of_rule:.3f}.",
        "",
        "Made by `python experiments/castor/live_pairs.py`; its top says what ran and what it does not show.",
        machine.sentences(numpy=np.__version__),
        "",
        "| xi from | RMSE, both jobs |",
        "| --- | --: |",
        *(f"| {name} | {error:.3f} |" for name, error in errors.items()),
        "",
        "The settings are those that `predictor train` tries. Below is the xi of the row's job beside the",
        "column's.",
        "",
        *matrix(pairs),
    ]
    return "\n".join(lines) + "\n"


def matrix(pairs: PairRows) -> list[str]:
    xi = {}
    for (one, two), (first, second) in zip(pairs.models, pairs.xi.tolist(), strict=True):
        xi[two, one], xi[one, two] = second, first
    names = list(dict.fromkeys(one for one, _ in xi))
    lines = [f"| | {' | '.join(names)} |", "| --- |" + " --: |" * len(names)]
    for one in names:
        cells = (f"{xi[one, two]:.2f}" if (one, two) in xi else "" for two in names)
        lines.append(f"| {one} | {' | '.join(cells)} |")
    return lines


def left_out(table: training.PairColumns, number: int) -> Both:
    folds = training.pair_folds(table.pairs.groups, 0, len(table.pairs))
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
