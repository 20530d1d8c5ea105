"""The runs behind results/lazer.md, one cell each, kept on disk: a stop loses nothing that was finished;
and the book that looks them up, and makes ratios with intervals of them.

Rule: a cell is all that its result depends on, and its file is named after that alone (not after the commit:
the page lists those that its cells come from). Each runs what `sim compare --windows` does. A ratio is of
means over a window's jobs, both policies on the same windows; what it may be off by is drawn over VCs,
cluster sizes and windows (`results/paired.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from cotenant.controller.sim import (
    Scenario,
    Task,
    TaskRun,
    policies_named,
    run_all,
    scenario,
    simulate,
    windows,
)
from cotenant.controller.sim.results.paired import Ratio, ratio
from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.training import compute
from experiments.shared import kept_runs, paths

FOLDER: Final = paths.CACHE / "lazer"
VERSION: Final = 2
"""Of the result's form and of what a run means: raise it when the simulated world changes."""
SEED: Final = 0
"""One: what is drawn (load and pause times) is not what ratios depend on most; windows, VCs and sizes are."""

BASE: Final = "lazer:x_max_s=0"
"""Lazer without deferral: what every number is set against."""
LAZER: Final = "lazer"
POLICIES: Final = (
    LAZER, BASE, "srtf:newcomers=every", "sjf", "interval-60", "interval-360", "interval-600", "srtf-full",
    "patient",
)  # fmt: skip

Number = Callable[[dict[str, Any]], float]
CONTENDED: Final = 1.0
"""Offered load from which on work arrives faster than the cluster can do it."""


class Ground(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Windows of a trace on a cluster of hosts of 8 GPUs."""

    trace: str
    hosts: int = 8
    jobs: int = 3_000
    windows: int = 4
    window_jobs: int = 250

    def scenario(self) -> Scenario:
        return Scenario(**msgspec.structs.asdict(self))

    def command(self) -> str:
        """What compares on it, the policies left to be named."""
        size = f"--windows {self.windows} --window-jobs {self.window_jobs}"
        return f"cotenant sim compare {self.trace} --jobs {self.jobs} --hosts {self.hosts} {size}"


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is simulated; said on the page."""

    vcs: tuple[str, ...] = ("0e4a51", "6214e9", "6c71a0", "b436b2", "ee9e8c")
    hosts: tuple[int, ...] = (8, 16, 32)
    jobs: int = 3_000
    windows: int = 4
    window_jobs: int = 250


FULL: Final = Sizes()
QUICK: Final = Sizes(vcs=("6214e9", "6c71a0"), hosts=(8, 32), jobs=240, windows=2, window_jobs=60)


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One policy on one ground."""

    ground: Ground
    policy: str

    @property
    def key(self) -> str:
        return hashlib.blake2b(msgspec.json.encode([VERSION, SEED, self]), digest_size=12).hexdigest()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of it."""

    cell: Cell
    commit: str
    offered_load: float
    """Of the whole part of the trace that windows are taken from."""
    windows: list[dict[str, Any]]
    """The summary of each."""


def grounds(sizes: Sizes) -> list[Ground]:
    size = {"jobs": sizes.jobs, "windows": sizes.windows, "window_jobs": sizes.window_jobs}
    return [Ground(trace=f"philly/{vc}", hosts=hosts, **size) for vc in sizes.vcs for hosts in sizes.hosts]


def plan(sizes: Sizes) -> list[Cell]:
    """All cells, each once, ground by ground: windows of a ground are cut once."""
    return [Cell(ground=ground, policy=policy) for ground in grounds(sizes) for policy in POLICIES]


# --- Running -----------------------------------------------------------------------------------------


def load(cell: Cell) -> Result | None:
    return kept_runs.read_kept((FOLDER / f"{cell.key}.json"), Result)


@lru_cache(maxsize=2)
def prepared(ground: Ground) -> tuple[Task, TaskRun]:
    """All of it, and what the reference made of it."""
    (whole,) = scenario.tasks(ground.scenario(), [windows.REFERENCE], [SEED])
    (run,) = run_all([windows.reference(whole)], workers=1, keep=True)
    return whole, run


def run(cell: Cell, commit: str) -> None:
    """In a process of its own; the result appears whole or not at all."""
    whole, reference = prepared(cell.ground)
    size = cell.ground.windows, cell.ground.window_jobs
    found = []
    for task in windows.tasks([whole], [reference], policies_named(cell.policy), size):
        name, parameters = task.policy.name, task.policy.parameters
        outcome = simulate(
            task.workload,
            task.cluster,
            name,
            parameters,
            seed=task.seed,
            physics=task.physics,
            compute=compute,
        )
        if outcome.interrupted:
            return
        found.append(summarise(outcome, warm=task.warm))
    result = Result(
        cell=cell,
        commit=commit,
        offered_load=whole.workload.offered_load(whole.cluster.gpus),
        windows=found,
    )
    kept_runs.keep(result, FOLDER / f"{cell.key}.json")


def run_missing(cells: list[Cell], *, workers: int, minutes: float) -> bool:
    """Runs what is not on disk yet, in order, until the time is over; whether all is there afterwards."""
    return kept_runs.complete(cells, load, run, workers=workers, minutes=minutes)


def at(*keys: str) -> Number:
    """A number of a window's summary; 0 where there is none: nothing was preempted."""

    def find(summary: dict[str, Any]) -> float:
        found: Any = summary
        for key in keys:
            found = None if found is None else found[key]
        return 0.0 if found is None else float(found)

    return find


JCT_MEAN, JCT_P50, JCT_P95 = (at("jct_s", name) for name in ("mean", "p50", "p95"))
WAIT_MEAN, FUTILE_GPU_S = at("wait_s", "mean"), at("futile_s", "total_gpu_s")


class Book:
    """All results, each there."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        found = [load(cell) for cell in plan(sizes)]
        self.results: dict[Cell, Result] = {one.cell: one for one in found if one is not None}
        everywhere = grounds(sizes)
        self.contended = [ground for ground in everywhere if self.load(ground) >= CONTENDED]
        self.light = [ground for ground in everywhere if self.load(ground) < CONTENDED]

    def load(self, ground: Ground) -> float:
        return self.results[Cell(ground=ground, policy=BASE)].offered_load

    def ratio(self, grounds: Sequence[Ground], policy: str, number: Number, base: str = BASE) -> Ratio | None:
        """Cells of a VC are a group."""
        groups: dict[str, list[list[tuple[float, float]]]] = {}
        for ground in grounds:
            pairs = [
                (number(one), number(other))
                for one, other in zip(self.windows(ground, policy), self.windows(ground, base), strict=True)
            ]
            groups.setdefault(ground.trace, []).append(pairs)
        return ratio(list(groups.values()))

    def windows(self, ground: Ground, policy: str) -> list[dict[str, Any]]:
        return self.results[Cell(ground=ground, policy=policy)].windows

    def total(self, grounds: Sequence[Ground], policy: str, number: Number) -> float:
        return sum(number(window) for ground in grounds for window in self.windows(ground, policy))

    def commits(self) -> list[str]:
        return sorted({result.commit for result in self.results.values()})
