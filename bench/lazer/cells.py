"""The runs behind docs/results/lazer.md, one cell each, kept on disk: a stop loses nothing that was finished.

Rule: a cell is all that its result depends on, and its file is named after that alone (not after the
commit: the page lists the commits that its cells come from). Cells are ordered seed by seed, so that a run
cut short at any time has every experiment with fewer seeds, not some experiments whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import places
import result_cells

from cotenant.controller.policies import registry
from cotenant.controller.sim import scenario
from cotenant.controller.sim.choices import policies_named
from cotenant.controller.sim.results.outcome import Outcome
from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.sim.scenario import Scenario
from cotenant.controller.sim.simulate import simulate

FOLDER: Final = places.CACHE / "lazer"
VERSION: Final = 1
"""Of the result's form and of what a run means: raise it when the simulated world changes."""
QUANTILES: Final = np.linspace(0.0, 1.0, 201)

PHILLY: Final = ("0e4a51", "103959", "51b7ef", "6214e9", "6c71a0", "b436b2", "e13805", "ed69ec", "ee9e8c")
SYNTHETIC: Final = ("earth", "saturn", "uranus")
BASELINES: Final = ("sjf", "srtf", "interval-60", "interval-360", "interval-600")
"""The paper's own."""
POLICIES: Final = ("fifo", "ssf", *BASELINES, "srtf-full", "srsf", "tiresias", "lazer", "patient")
OPTIONS: Final = (
    "lazer:dwq_offered=true", "lazer:chain=last", "lazer:reserve_head=true", "lazer:protect_loading=true",
)  # fmt: skip
VARIED: Final = ("sjf", "srtf", "interval-60", "lazer", "patient")
LOADS: Final = (1.0, 2.0, 4.0)
LOAD_TIMES: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
NOISES: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
REGIME_LOAD_TIMES: Final = (0.1, 0.5, 1.0, 2.0, 4.0)
REGIME_RATES: Final = (0.5, 1.0, 2.0, 4.0)
SENSITIVE: Final = "philly/6214e9"


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is simulated; said on the page."""

    philly_jobs: int = 2_500
    synthetic_jobs: int = 10_000
    synthetic_hosts: int = 64
    varied_jobs: int = 2_000
    regime_jobs: int = 3_000
    regime_hosts: int = 32
    seeds: int = 5
    vcs: tuple[str, ...] = PHILLY
    loads: tuple[float, ...] = LOADS
    load_times: tuple[float, ...] = REGIME_LOAD_TIMES
    rates: tuple[float, ...] = REGIME_RATES


FULL: Final = Sizes()
QUICK: Final = Sizes(
    philly_jobs=300,
    synthetic_jobs=500,
    varied_jobs=300,
    regime_jobs=300,
    regime_hosts=8,
    seeds=2,
    vcs=("51b7ef", "6214e9", "ee9e8c"),
    loads=(1.0, 2.0),
    load_times=(0.1, 1.0),
    rates=(1.0, 4.0),
)


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One run."""

    trace: str
    policy: str
    seed: int
    jobs: int
    hosts: int = 8
    load_scale: float = 1.0
    load_time_scale: float = 1.0
    noise: float = 0.0

    @property
    def key(self) -> str:
        text = msgspec.json.encode([VERSION, self])
        return hashlib.blake2b(text, digest_size=12).hexdigest()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run."""

    cell: Cell
    commit: str
    synthetic: bool
    summary: dict[str, Any]
    jct_s: list[float]
    """At QUANTILES; finished jobs."""
    wait_s: list[float]
    parts_s: list[float]
    """W, L, T, P, means over the jobs around the median JCT."""
    futile_percent: float
    """Of the GPU time that jobs held."""


# --- Which -------------------------------------------------------------------------------------------


def philly(sizes: Sizes, load: float, seed: int, policies: Sequence[str]) -> Iterator[Cell]:
    for vc in sizes.vcs:
        for policy in policies:
            yield Cell(
                trace=f"philly/{vc}", policy=policy, seed=seed, jobs=sizes.philly_jobs, load_scale=load
            )


def synthetic(sizes: Sizes, seed: int) -> Iterator[Cell]:
    for name in SYNTHETIC:
        for policy in POLICIES:
            yield Cell(
                trace=f"synth:{name}:{sizes.synthetic_jobs}",
                policy=policy,
                seed=seed,
                jobs=sizes.synthetic_jobs,
                hosts=sizes.synthetic_hosts,
            )


def varied(sizes: Sizes, seed: int) -> Iterator[Cell]:
    """Sensitivity: one thing at a time."""
    settings: list[dict[str, Any]] = [
        *({"load_time_scale": scale} for scale in LOAD_TIMES),
        *({"noise": noise} for noise in NOISES if noise),
        *({"load_scale": load} for load in REGIME_RATES if load != 1.0),
    ]
    for setting in settings:
        for policy in VARIED:
            yield Cell(trace=SENSITIVE, policy=policy, seed=seed, jobs=sizes.varied_jobs, **setting)


def regime_load(sizes: Sizes, seed: int) -> Iterator[Cell]:
    """Load time against arrival rate on the same cluster: the load grows with the rate."""
    yield from _regime(sizes, seed, lambda rate: sizes.regime_hosts)


def regime_gap(sizes: Sizes, seed: int) -> Iterator[Cell]:
    """Load time against arrival rate with a cluster that grows with it: the load stays."""
    yield from _regime(sizes, seed, lambda rate: max(1, round(sizes.regime_hosts * rate)))


def _regime(sizes: Sizes, seed: int, hosts: Any) -> Iterator[Cell]:
    for scale in sizes.load_times:
        for rate in sizes.rates:
            for policy in ("srtf", "lazer"):
                yield Cell(
                    trace=f"synth:earth:{sizes.regime_jobs}",
                    policy=policy,
                    seed=seed,
                    jobs=sizes.regime_jobs,
                    hosts=hosts(rate),
                    load_scale=rate,
                    load_time_scale=scale,
                )


def plan(sizes: Sizes) -> list[Cell]:
    """All cells, each once, in the order of worth: every experiment with one seed, then with two, ..."""
    cells: dict[Cell, None] = {}
    for seed in range(sizes.seeds):
        for load in sizes.loads:
            cells.update(dict.fromkeys(philly(sizes, load, seed, POLICIES)))
        cells.update(dict.fromkeys(synthetic(sizes, seed)))
        cells.update(dict.fromkeys(philly(sizes, 1.0, seed, OPTIONS)))
        cells.update(dict.fromkeys(varied(sizes, seed)))
        cells.update(dict.fromkeys(regime_load(sizes, seed)))
        cells.update(dict.fromkeys(regime_gap(sizes, seed)))
    return [cell for cell in cells if is_possible(cell)]


def is_possible(cell: Cell) -> bool:
    return cell.policy.partition(":")[0] in registry.AVAILABLE


# --- Running -----------------------------------------------------------------------------------------


def load(cell: Cell) -> Result | None:
    """From the disk; None where it was not run, or its file is damaged."""
    try:
        return msgspec.json.decode((FOLDER / f"{cell.key}.json").read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        return None


def run(cell: Cell, commit: str) -> None:
    """In a process of its own; the result appears whole or not at all."""
    (choice,) = policies_named(cell.policy)
    asked = Scenario(
        trace=cell.trace,
        jobs=cell.jobs,
        hosts=cell.hosts,
        load_scale=cell.load_scale,
        load_time_scale=cell.load_time_scale,
        noise=cell.noise,
    )
    (task,) = scenario.tasks(asked, [choice], [cell.seed])
    outcome = simulate(
        task.workload,
        task.cluster,
        choice.name,
        choice.parameters,
        seed=cell.seed,
        physics=task.physics,
    )
    if not outcome.interrupted:
        result_cells.keep(result_of(cell, outcome, commit), FOLDER / f"{cell.key}.json")


def result_of(cell: Cell, outcome: Outcome, commit: str) -> Result:
    from cotenant.controller.sim.results import plots

    done = outcome.finished
    return Result(
        cell=cell,
        commit=commit,
        synthetic=outcome.workload.synthetic,
        summary=summarise(outcome),
        jct_s=np.quantile(outcome.jct_s[done], QUANTILES).tolist(),
        wait_s=np.quantile(outcome.wait_s[done], QUANTILES).tolist(),
        parts_s=list(plots.parts(outcome, cell.policy)[1:]),
        futile_percent=plots.futile_percent(outcome),
    )


def run_missing(cells: Sequence[Cell], *, workers: int, minutes: float) -> bool:
    """Runs what is not on disk yet, in order, until the time is over; whether all is there afterwards."""
    return result_cells.complete(cells, load, run, workers=workers, minutes=minutes)
