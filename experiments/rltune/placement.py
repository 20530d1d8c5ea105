"""placement=milp beside best fit: runs what is missing, then writes results/placement.md.

    python experiments/rltune/placement.py [--minutes 25]     eight processor minutes; what was run is kept
    python experiments/rltune/placement.py --page             only the page, from the runs that are there

Arrivals, lengths and widths are those of Philly's VCs. In `gpus` that is all, on equal hosts. In `memory`
each job asks for cores and main memory as well, and in `pool` hosts are of three kinds too, and some jobs ask
for one type: these asks and hosts are drawn here, from the seed, and no trace has them.

Rule: the solver has a limit of nodes and none of time that matters, so a run is the same on any machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

sys.path.extend(str(Path(__file__).resolve().parents[2] / name) for name in ("", "bench"))

import machine

from cotenant.controller.papers.rltune import placement
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.sim import Cluster, HostAsk, SimulatedHost, Workload, prepare, read, simulate
from cotenant.controller.sim.results import plots
from experiments.shared import kept_runs, paths
from experiments.shared.tables import header, row_of, said, said_seeds, saved

VCS: Final = ("0e4a51", "6c71a0", "b436b2", "ee9e8c", "103959")
ORDERS: Final = ("sjf", "fifo", "wfp3", "interval-360")
WORLDS: Final = ("gpus", "memory", "pool")
PLACEMENTS: Final = ("best-fit", "milp")
SEEDS: Final = (0, 1)
JOBS: Final = 800
LOAD: Final = 0.7
WIDEST: Final = 16
"""GPUs of a job; those of more than 24 could never start in `pool`."""
HOSTS: Final = 8
GIB: Final = 1024
LIKE: Final = SimulatedHost(8, "A100", 96, 768 * GIB)
POOL: Final = (
    (LIKE,) * 3
    + (SimulatedHost(8, "V100", 64, 384 * GIB),) * 3
    + (SimulatedHost(4, "H100", 96, 1024 * GIB),) * 2
)
CACHE: Final = paths.CACHE / "placement"
DRAWS: Final = 2000
SURE: Final = 0.995


class Cell(msgspec.Struct, frozen=True):
    world: str
    order: str
    vc: str
    seed: int
    placement: str

    @property
    def file(self) -> Path:
        return CACHE / f"{self.world}-{self.order}-{self.vc}-{self.seed}-{self.placement}.json"


class Row(msgspec.Struct, frozen=True):
    """One run. Times in seconds."""

    cell: Cell
    jobs: int
    wait_s: float
    bounded_slowdown: float
    solved: int
    given_up: int
    cpu_s: float
    commit: str


class Counted(placement.Highs):
    """How often it was asked, and in vain."""

    def __init__(self) -> None:
        super().__init__(limit_s=30.0)
        self.solved = self.given_up = 0

    def solve(self, problem: placement.PlacementProblem) -> placement.PlacementSolution | None:
        found = super().solve(problem)
        self.solved += 1
        self.given_up += found is None
        return found


def cells() -> list[Cell]:
    """Those that everything rests on first; `interval` takes longest."""
    first = list(product(SEEDS, WORLDS, VCS, ORDERS[:-1], PLACEMENTS))
    last = list(product(SEEDS, WORLDS, VCS, ORDERS[-1:], PLACEMENTS))
    return [Cell(world, order, vc, seed, placed) for seed, world, vc, order, placed in (*first, *last)]


def load(cell: Cell) -> Row | None:
    return msgspec.json.decode(cell.file.read_bytes(), type=Row) if cell.file.exists() else None


def run(cell: Cell, commit: str) -> None:
    began_s, solver = time.process_time(), Counted()
    workload, cluster = world(cell)

    def make(name: str, parameters: Parameters) -> Policy:
        policy = registry.make(name, parameters)
        return policy if cell.placement == "best-fit" else placement.PlacedTogether(policy, solver)

    outcome = simulate(workload, cluster, cell.order, make_policy=make)
    assert outcome.finished.all()
    alone_s = np.maximum(workload.duration_s + workload.load_s, 10.0)
    slowdown = np.maximum((outcome.wait_s + workload.load_s + workload.duration_s) / alone_s, 1.0)
    took_s = time.process_time() - began_s
    waits_s, slowdowns = float(outcome.wait_s.mean()), float(slowdown.mean())
    counts = (solver.solved, solver.given_up)
    kept_runs.keep(Row(cell, len(workload), waits_s, slowdowns, *counts, took_s, commit), cell.file)


def world(cell: Cell) -> tuple[Workload, Cluster]:
    """At the same offered load in all worlds; jobs that could never start are left out of all."""
    shapes = POOL if cell.world == "pool" else (LIKE,) * HOSTS
    cluster = Cluster(hosts=HOSTS, gpus_per_host=8, shapes=shapes)
    trace = read(f"philly/{cell.vc}")
    trace = trace.take(trace.gpus <= WIDEST)
    whole = prepare(trace, cluster=cluster, seed=cell.seed, jobs=JOBS, load_scale=1.0, noise=0.7)
    scale = LOAD / whole.offered_load(cluster.gpus)
    workload = prepare(trace, cluster=cluster, seed=cell.seed, jobs=JOBS, load_scale=scale, noise=0.7)
    if cell.world == "gpus":
        return workload, cluster
    rng = np.random.default_rng([cell.seed, VCS.index(cell.vc)])
    return replace(workload, asks=tuple(ask(rng, cell.world, int(gpus)) for gpus in workload.gpus)), cluster


def ask(rng: np.random.Generator, world: str, gpus: int) -> HostAsk:
    """4 to 12 cores and 16 to 160 GiB for each GPU on a host: most little, some much, as far as all hosts
    that it may go to have so much."""
    type = str(rng.choice(["", "", "A100", "V100", "H100"]))
    of_gpu = int(rng.choice([16, 48, 160], p=[0.6, 0.25, 0.15])) * GIB
    cores = int(rng.integers(4, 13))
    here = min(gpus, 8)
    if world != "pool" or gpus > 8:
        type = ""
    if type == "H100" and gpus > 4:
        type = "A100"
    wanted = [shape for shape in (POOL if world == "pool" else (LIKE,)) if type in ("", shape.gpu_type)]
    most_cpus, most_mib = (min(s.cpus for s in wanted), min(s.main_memory_mib for s in wanted))
    return HostAsk(type, min(cores * here, most_cpus), min(of_gpu * here, most_mib))


# --- The page ---------------------------------------------------------------------------------------


def ratios(rows: Sequence[Row], world: str, order: str, of: str) -> list[float]:
    """milp over best fit, of each VC and seed that has both; below 1 milp is better."""
    found = {(r.cell.world, r.cell.order, r.cell.vc, r.cell.seed, r.cell.placement): r for r in rows}
    pairs = [
        (found.get((world, order, vc, seed, "milp")), found.get((world, order, vc, seed, "best-fit")))
        for vc, seed in product(VCS, SEEDS)
    ]
    values = [(getattr(a, of), getattr(b, of)) for a, b in pairs if a is not None and b is not None]
    return [mine / theirs for mine, theirs in values if theirs > 0.0]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % over the cells, drawn anew."""
    logs, rng = np.log(values), np.random.default_rng(5)
    low, high = np.quantile(np.exp(rng.choice(logs, (DRAWS, len(logs))).mean(axis=1)), [0.025, 0.975])
    return float(low), float(high)


def geometric(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{np.exp(np.log(values).mean()):.3f} ({low:.3f} to {high:.3f})"


def verdict(rows: Sequence[Row]) -> str:
    """Where the gain is sure."""
    found = [(w, o, ratios(rows, w, o, "wait_s")) for w, o in product(WORLDS, ORDERS)]
    sure = [
        f"`{order}` in `{world_}`" for world_, order, waits in found if waits and interval(waits)[1] < SURE
    ]
    return f"in {', '.join(sure)}" if sure else "in no row of the table"


ANSWER: Final = """
    `placement=milp`, which places waiting jobs together, certainly lowers the mean wait {verdict} (the
    whole interval below {sure:g}), beside best fit under the same order. Where any job that fits may
    start, it changes nothing: what fits was started before, so there is nothing to choose. Single
    clusters gain or lose much, so best fit stays the default.
"""
WHERE: Final = """
    Each number is the mean wait with `milp` divided by that with best fit, so below 1 is a gain; the
    worst and the best case of a VC and seed follow. The solver matters where many jobs are placed at one
    moment: behind a head that has waited (`fifo`, `f1`, `wfp3`) and under orders that look at the queue
    now and then (`interval`). `gpus` is the Philly VCs as they are. The cores, main memory and kinds of
    hosts of `memory` and `pool` are **synthetic**.
"""
METHOD: Final = """
    `python experiments/rltune/placement.py` makes this page: {runs} of {all} runs, {jobs} jobs of each of
    {vcs} VCs, {seeds}, at an offered load of {load:g} on {hosts} hosts, with estimates off by a lognormal
    of 0.7. Intervals draw the cases anew, {draws} times. The solver was asked {solved:,} times and found
    nothing within {nodes} nodes {given:,} times; then best fit decided.
"""
DRAWN: Final = """
    Hosts have 8 GPUs, 96 cores and 768 GiB; in `pool` three are such, three have 8 V100, 64 cores and 384
    GiB, and two have 4 H100, 96 cores and 1 TiB. Jobs ask for 4 to 12 cores and for 16 (60 %), 48 (25 %)
    or 160 GiB (15 %) for each GPU; in `pool` three in five ask for one type of GPU, which does not change
    their pace.
"""
COST: Final = """
    `python bench/placement.py` says what a decision costs, [policies.md](../../docs/policies.md) what the
    option is.
"""


def text(rows: Sequence[Row], folder: Path) -> str:
    """`folder`: where the picture is written."""
    table = header(("world", "order", "cases", "wait", "worst, best", "bounded slowdown"))
    sets: dict[str, list[plots.Range]] = {}
    for world_, order in product(WORLDS, ORDERS):
        waits = ratios(rows, world_, order, "wait_s")
        if waits:
            slow = ratios(rows, world_, order, "bounded_slowdown")
            span = f"{max(waits):.2f}, {min(waits):.2f}"
            table.append(row_of((world_, order, str(len(waits)), geometric(waits), span, geometric(slow))))
            mean = float(np.exp(np.log(waits).mean()))
            sets.setdefault(world_, []).append(plots.Range(order, mean, *interval(waits)))
    title = "Mean wait with milp over best fit (memory and pool: SYNTHETIC asks)"
    figure = plots.ranges(sets, title, "mean wait / that with best fit, 95 %", synthetic=False)
    folder.mkdir(parents=True, exist_ok=True)
    both = [r for r in rows if r.cell.placement == "milp"]
    method = said(
        METHOD,
        vcs=len(VCS),
        seeds=said_seeds(sorted({r.cell.seed for r in rows})),
        draws=DRAWS,
        jobs=JOBS,
        load=LOAD,
        hosts=HOSTS,
        solved=sum(r.solved for r in both),
        given=sum(r.given_up for r in both),
        nodes=placement.NODES_MAX,
        runs=len(rows),
        all=len(cells()),
    )
    commits = ", ".join(sorted({r.commit for r in rows}))
    parts = [
        "# Placing waiting jobs together",
        said(ANSWER, verdict=verdict(rows), sure=SURE),
        saved(figure, folder, "answer", title),
        f"## Beside best fit\n\n{said(WHERE)}",
        "\n".join(table),
        f"## How this page was made\n\n{method}",
        said(DRAWN),
        said(COST),
        f"{machine.sentences()} The runs were made at {commits}.",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--minutes", type=float, default=25.0, help="begin no run after so many")
    options = parser.parse_args()
    if not options.page:
        kept_runs.complete(cells(), load, run, workers=1, minutes=options.minutes)
    rows = [row for cell in cells() if (row := load(cell)) is not None]
    if not rows:
        print("nothing has been run yet", file=sys.stderr)
        return 1
    page = paths.RESULTS / "placement.md"
    page.write_text(text(rows, paths.RESULTS / "placement"))
    print(f"{page}: {len(rows)} of {len(cells())} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
