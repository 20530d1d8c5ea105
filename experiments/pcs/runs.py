"""The runs behind the page: what each figure needs, kept one file per run in `experiments/.cache/pcs/`;
figure 1 (four jobs, one GPU, three policies) is played anew.

Rule: a run is a function of its cell; a file that is there is not run again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.controller.papers.pcs import WfqConfig, parse_published
from cotenant.controller.papers.pcs.preferences import Objective, find_front
from cotenant.controller.policies.base import Parameters
from cotenant.controller.sim import Cluster, Scenario, Workload, open_trace
from cotenant.controller.training import evaluator
from experiments.pcs.fluid import (
    NEVER,
    POLICIES,
    FluidJob,
    FluidResult,
    FluidWindow,
    Play,
    Speedup,
    fluid_workload,
    predicted_end_s,
    simulate_fluid,
)
from experiments.shared import paths

CACHE: Final = paths.CACHE / "pcs"
PAPER: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("paper.json").read_text())
PARTS: Final = np.linspace(0.0, 1.0, 101)
VCS: Final = tuple(PAPER["figure_7"]["workloads"])
SEED: Final = 0
SEARCH_VC, SEARCH_JOBS, EVALUATIONS, ASKED_RATIO = "0e4a51", 300, 280, 0.25

TOY_ARRIVALS: Final = ((0.0, 10.0), (0.0, 8.0), (1.0, 1.0), (10.0, 8.0))
"""When, and how long."""
TOY_POLICIES: Final[dict[str, Parameters]] = {"srsf": {}, "themis": {"lease_s": 1.0}, "fifo": {}}
TOY_PAPERS: Final = {"srsf": "tiresias", "themis": "themis", "fifo": "yarn_fifo"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of the fluid world."""

    vc: str
    policy: str
    """Of the catalogue, or `pcs-NAME` with a published configuration."""
    jobs: int | None = None
    asked: int = 300
    noise: float = 0.0
    load_scale: float = 1.0
    gpus: int = 64

    @property
    def file(self) -> Path:
        given = "-".join(str(value) for value in asdict(self).values())
        return CACHE / f"{given}.json"


def figure_7() -> list[Cell]:
    """Also 4, 5, 6 and 8: errors, times and unfairness of the same runs."""
    found = []
    for vc, policies in {
        "0e4a51": ("afs-l", "srsf", "fifo", "themis", "pcs-jct", "pcs-bal", "pcs-pred"),
        "b436b2": ("afs-l", "srsf", "fifo", "pcs-jct", "pcs-bal"),
        "6c71a0": ("afs-l", "srsf", "fifo", "pcs-jct", "pcs-bal", "pcs-pred"),
    }.items():
        found += [
            Cell(vc=vc, policy=policy, asked={"themis": 60, "fifo": 50}.get(policy, 300))
            for policy in policies
        ]
    return found


def others() -> list[Cell]:
    """Not compared with in the paper. Not sia: the prediction of a starved job takes minutes."""
    return [Cell(vc="0e4a51", policy=policy, asked=30) for policy in ("max-min", "pollux")]


def promises() -> list[Cell]:
    """Beside the fronts of `fronts.py`."""
    return [Cell(vc=vc, policy=policy) for vc in VCS for policy in ("stretch", "promise")]


NOISES: Final = (0.0, 0.7)
"""Sigma of a lognormal factor."""


def figure_10() -> list[Cell]:
    return [
        Cell(vc="0e4a51", policy=policy, jobs=500, asked=100, noise=noise)
        for policy in ("fifo", "afs-l", "pcs-bal")
        for noise in NOISES
    ]


def cells() -> Iterator[Cell]:
    yield from figure_7()
    yield from others()
    yield from promises()
    yield from figure_10()


def load(cell: Cell) -> dict[str, Any] | None:
    return loaded(cell.file)


def loaded(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def keep(file: Path, value: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(value))
    beside.replace(file)


@cache
def workload(vc: str, jobs: int | None, noise: float, load_scale: float, gpus: int) -> Workload:
    wanted = Scenario(
        trace=f"philly/{vc}", jobs=jobs, noise=noise, load_scale=load_scale, hosts=gpus // 8
    )  # fmt: skip
    return fluid_workload(wanted, open_trace(wanted.trace), SEED)


def config(vc: str, name: str) -> WfqConfig:
    return parse_published(PAPER["configs"][f"{vc}_{name}"])


def run(cell: Cell) -> dict[str, Any]:
    policy, _, name = cell.policy.partition("-") if cell.policy.startswith("pcs-") else (cell.policy, "", "")
    parameters = config(cell.vc, name).as_parameters() if name else None
    cluster = Cluster(hosts=cell.gpus // 8, gpus_per_host=8)
    jobs = workload(cell.vc, cell.jobs, cell.noise, cell.load_scale, cell.gpus)
    began_s = time.process_time()
    outcome = simulate_fluid(jobs, cluster, policy, parameters, asked=cell.asked)
    value = {**facts(outcome), "cpu_s": time.process_time() - began_s, **asdict(cell)}
    keep(cell.file, value)
    return value


def facts(outcome: FluidResult) -> dict[str, Any]:
    asked = np.isfinite(outcome.predicted_s)
    error = np.abs(outcome.jct_s[asked] / outcome.predicted_s[asked] - 1.0)
    late = np.maximum(outcome.jct_s / outcome.fair_s - 1.0, 0.0)
    return {
        "mean_jct_s": float(outcome.jct_s.mean()),
        "p90_jct_s": float(np.percentile(outcome.jct_s, 90)),
        "errors": np.quantile(error, PARTS).tolist(),
        "mean_error": float(error.mean()),
        "late": np.quantile(late, PARTS).tolist(),
        "mean_late": float(late.mean()),
    }


def search_file() -> Path:
    return CACHE / "search.json"


def search() -> dict[str, Any]:
    """Figure 9: a front, and what it took."""
    jobs = workload(SEARCH_VC, None, 0.0, 1.0, 64)
    cluster = Cluster(hosts=8, gpus_per_host=8)
    train, test = (
        FluidWindow(jobs.take(np.arange(first, first + SEARCH_JOBS)), cluster, ASKED_RATIO)
        for first in (0, SEARCH_JOBS)
    )
    objectives = Objective("jct"), Objective("error")
    began_s, wall_s = time.process_time(), time.perf_counter()
    with evaluator("processes", workers=1) as evaluate:
        front = find_front(train, test, objectives, evaluate, evaluations=EVALUATIONS, seed=SEED)
    value = {
        **front,
        "cpu_s": time.process_time() - began_s,
        "wall_s": time.perf_counter() - wall_s,
    }
    keep(search_file(), value)
    return value


class Toy(NamedTuple):
    """Units of time; error as a part."""

    mean_jct: float
    mean_error: float
    worst_late: float


def toy_played(policy: str) -> Toy:
    one = Speedup((1.0,))
    jobs = [FluidJob(at, size, size, one) for at, size in TOY_ARRIVALS]
    play = Play(jobs, 1, POLICIES[policy].make(TOY_POLICIES[policy]))
    told: dict[int, float] = {}
    took: dict[int, float] = {}
    late: dict[int, float] = {}
    for number, until_s in enumerate([*(job.submit_s for job in jobs), NEVER]):
        while play.left_gpu_s and (ended := play.advance(until_s)) is not None:
            took[ended] = play.now_s - jobs[ended].submit_s
            late[ended] = max(0.0, took[ended] / (jobs[ended].work_gpu_s * play.contention(ended)) - 1.0)
        if number < len(jobs):
            play.now_s = until_s
            play.arrive(number)
            told[number] = predicted_end_s(play, number) - until_s
    errors = [abs(took[job] / told[job] - 1.0) for job in told]
    return Toy(sum(took.values()) / len(took), sum(errors) / len(errors), max(late.values()))
