"""The runs behind results/castor.md, one cell each, on samples of busiest periods; and the book that
looks them up, and makes means, ratios and intervals of them.

Rule: what a cell runs on follows from the cell alone: the period from its trace, the sample and each job's
model from its seed. Venus is read where it lies and is kept nowhere: only sums of a run are. Policies are
compared seed by seed (both had the same jobs), so a ratio's interval is over seeds; over several traces a
ratio is the geometric mean.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from cotenant.controller.sim import (
    Cluster,
    Physics,
    RunResult,
    Scenario,
    Trace,
    TraceProblem,
    Workload,
    pair_data,
    policies_named,
    scenario,
    simulate,
)
from cotenant.controller.sim.results.paired import ConfidenceInterval, interval
from cotenant.controller.sim.results.summary import summarise
from experiments.castor.periods import busiest, sample
from experiments.shared import kept_runs, paths

FOLDER: Final = paths.CACHE / "castor"
VERSION: Final = 1
"""Of the result's form and of what a run means: raise it when the simulated world changes."""

EXCLUSIVE: Final = ("fifo", "sjf", "ssf", "srtf:newcomers=every", "tiresias")
PUBLISHED: Final = ("lucid:part=false", "sjf-ffs:part=false", "castor:part=false")
"""As in the papers: nothing is parted."""
OURS: Final = ("castor", "castor-cost")
SHARING: Final = (*PUBLISHED, *OURS)
POLICIES: Final = (*EXCLUSIVE, *SHARING)
CASTOR: Final = "castor:part=false"
"""What the paper calls Castor."""
LEARNING: Final = (CASTOR, *OURS)
"""Run a second time, with pairs that nobody has measured."""

VENUS: Final = "venus"
PHILLY: Final = tuple(
    f"philly/{vc}"
    for vc in ("0e4a51", "103959", "51b7ef", "6214e9", "6c71a0", "b436b2", "e13805", "ed69ec", "ee9e8c")
)
SMALL_JOBS, LARGE_JOBS = 240, 480
"""The paper's workload, and twice as much."""
SCALES: Final = (0.5, 1.0, 1.5, 2.0)
SEEDS: Final = 5
LOAD_MIN: Final = 0.5
"""Below it hardly anybody waits, and all policies are alike."""
PAIRS: Final = "gavel-v100"


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """Where samples of a trace come from, and what they run on."""

    span_h: float
    hosts: int
    gpus_per_host: int

    @property
    def gpus(self) -> int:
        return self.hosts * self.gpus_per_host


ON_PHILLY: Final = Ground(span_h=168.0, hosts=16, gpus_per_host=4)
ON_VENUS: Final = Ground(span_h=72.0, hosts=20, gpus_per_host=8)
"""The VC's own 20 hosts."""


def ground(trace: str) -> Ground:
    return ON_VENUS if trace == VENUS else ON_PHILLY


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A run of a sample of `jobs`, with what the policies know of pairs beforehand."""

    trace: str
    policy: str
    seed: int
    jobs: int
    hosts: int = 8
    load_scale: float = 1.0
    load_time_scale: float = 1.0
    noise: float = 0.0
    gpus_per_host: int = 4
    xi: Literal["learned", "measured"] = "measured"

    @property
    def key(self) -> str:
        return hashlib.blake2b(msgspec.json.encode([VERSION, self]), digest_size=12).hexdigest()

    @property
    def file(self) -> Path:
        return FOLDER / f"{VERSION}-{self.key}.json"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run."""

    cell: Cell
    commit: str
    synthetic: bool
    summary: dict[str, Any]


# --- Samples -----------------------------------------------------------------------------------------


@cache
def period(trace: str) -> Trace:
    """The busiest period of a trace that has twice the paper's jobs.

    Raises:
        TraceProblem: it has none, or (Venus) it is not here.
    """
    name = str(venus_file()) if trace == VENUS else trace
    whole = scenario.open_trace(name).single_clock_trace()
    return busiest(whole, span_s=3600.0 * ground(trace).span_h, jobs=LARGE_JOBS)


def venus_file() -> Path:
    folder = Path(os.environ.get("COTENANT_SHARED_DATA") or paths.ROOT.parent / "shared")
    return folder / "traces" / "helios_venus_sept_vcvGl.csv.gz"


def expected_load(trace: str, jobs: int) -> float:
    """Of a sample: the mean GPU time of the period's jobs x jobs / GPU time of the cluster in the period."""
    found, on = period(trace), ground(trace)
    mean_gpu_s = float(np.mean(np.ceil(found.gpus) * found.duration_s))
    return mean_gpu_s * jobs / (on.gpus * on.span_h * 3600.0)


def why_not(trace: str) -> str:
    """Why a trace is not sampled; empty if it is."""
    if trace == VENUS and not venus_file().exists():
        return "not here (research-only data, never part of this repository)"
    try:
        load = expected_load(trace, SMALL_JOBS)
    except TraceProblem as problem:
        return problem.hint or str(problem)
    return f"{SMALL_JOBS} jobs would be a load of {load:.2f}" if load < LOAD_MIN else ""


@cache
def traces() -> tuple[str, ...]:
    return tuple(trace for trace in (*PHILLY, VENUS) if not why_not(trace))


def workload_of(cell: Cell) -> Workload:
    drawn = sample(period(cell.trace), jobs=cell.jobs, seed=cell.seed)
    asked = Scenario(trace=cell.trace, hosts=cell.hosts, gpus_per_host=cell.gpus_per_host, pairs=PAIRS)
    return scenario.workload_of(asked, drawn, pair_data(PAIRS), cell.seed)


# --- Which -------------------------------------------------------------------------------------------


def cell_of(trace: str, policy: str, jobs: int, seed: int = 0, xi: str = "measured") -> Cell:
    """Policies that do not share are the same whatever is known of pairs: one cell."""
    on = ground(trace)
    return Cell(
        trace=trace,
        policy=policy,
        seed=seed,
        jobs=jobs,
        hosts=on.hosts,
        gpus_per_host=on.gpus_per_host,
        xi="learned" if xi == "learned" and policy in SHARING else "measured",
    )


def compared(trace: str, jobs: int, seed: int) -> Iterator[Cell]:
    for policy in POLICIES:
        yield cell_of(trace, policy, jobs, seed)


def learning(trace: str, jobs: int, seed: int) -> Iterator[Cell]:
    for policy in LEARNING:
        yield cell_of(trace, policy, jobs, seed, "learned")


def plan(found: tuple[str, ...], seeds: int) -> list[Cell]:
    """All cells, each once; every experiment with one seed, then with two, ..."""
    cells: dict[Cell, None] = {}
    for seed in range(seeds):
        for trace in found:
            for jobs in (SMALL_JOBS, LARGE_JOBS):
                cells.update(dict.fromkeys(compared(trace, jobs, seed)))
                cells.update(dict.fromkeys(learning(trace, jobs, seed)))
            for scale in SCALES if trace != VENUS else ():
                cells.update(dict.fromkeys(compared(trace, round(scale * SMALL_JOBS), seed)))
    return list(cells)


# --- Running -----------------------------------------------------------------------------------------


def load(cell: Cell) -> Result | None:
    return kept_runs.read_kept(cell.file, Result)


def run(cell: Cell, commit: str) -> None:
    """In a process of its own; the result appears whole or not at all."""
    (choice,) = policies_named(cell.policy)
    outcome = simulate(
        workload_of(cell),
        Cluster(hosts=cell.hosts, gpus_per_host=cell.gpus_per_host),
        choice.name,
        choice.parameters,
        seed=cell.seed,
        physics=Physics(pairs=PAIRS, xi=cell.xi),
    )
    if not outcome.interrupted:
        kept_runs.keep(result_of(cell, outcome, commit), cell.file)


def result_of(cell: Cell, outcome: RunResult, commit: str) -> Result:
    return Result(
        cell=cell,
        commit=commit,
        synthetic=outcome.workload.synthetic,
        summary=summarise(outcome),
    )


Number = Callable[[Result], float]


class Ratio(NamedTuple):
    """A geometric mean over seeds, and its 95 % interval (equal where there is one seed)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


class Runs:
    """Results by their cells, of whatever kind of cell."""

    def __init__(self, results: Iterable[Result], seeds_max: int) -> None:
        self.results = {result.cell: result for result in results}
        self.seeds_max = seeds_max

    def seeds(self, cells: Callable[[int], Iterable[Cell]]) -> list[int]:
        """Those for which every cell of an experiment is there."""
        return [seed for seed in range(self.seeds_max) if all(cell in self.results for cell in cells(seed))]

    def of(self, template: Cell, seeds: Sequence[int]) -> list[Result]:
        """One run for each seed."""
        return [self.results[msgspec.structs.replace(template, seed=seed)] for seed in seeds]

    def value(self, template: Cell, seeds: Sequence[int], number: Number) -> ConfidenceInterval:
        return interval([number(result) for result in self.of(template, seeds)])

    def ratio(
        self, templates: Sequence[Cell], policy: str, base: str, seeds: Sequence[int], number: Number
    ) -> Ratio:
        """number(policy) / number(base): per seed the geometric mean over `templates`, then over seeds."""
        logs = []
        for seed in seeds:
            parts = []
            for template in templates:
                one, other = (
                    number(self.results[msgspec.structs.replace(template, seed=seed, policy=name)])
                    for name in (policy, base)
                )
                if one > 0.0 and other > 0.0:
                    parts.append(math.log(one / other))
            logs.append(math.fsum(parts) / len(parts) if parts else math.nan)
        found = interval(logs)
        return Ratio(math.exp(found.mean), math.exp(found.low), math.exp(found.high))

    def total(
        self, templates: Sequence[Cell], policy: str, seeds: Sequence[int], number: Number
    ) -> ConfidenceInterval:
        """Summed over `templates`, then the mean over seeds."""
        cells = [
            [msgspec.structs.replace(template, seed=seed, policy=policy) for template in templates]
            for seed in seeds
        ]
        return interval([math.fsum(number(self.results[cell]) for cell in each) for each in cells])

    def commits(self) -> list[str]:
        return sorted({result.commit for result in self.results.values()})


# --- Numbers of a run ----------------------------------------------------------------------------------


def at(*keys: str) -> Number:
    """A number of the summary; 0 where there is none (nothing was preempted, so nothing was futile)."""

    def find(result: Result) -> float:
        found: Any = result.summary
        for key in keys:
            found = None if found is None else found[key]
        return 0.0 if found is None else float(found)

    return find


JCT_MEAN, JCT_P50, WAIT_MEAN = at("jct_s", "mean"), at("jct_s", "p50"), at("wait_s", "mean")
