"""The runs behind results/gfs.md, kept one by one in experiments/.cache/gfs/; and by how much eq. 9
reserves more than hp jobs then ask for: by organisation, or with one quantile of all.

Rule: the policies of a cell get the same jobs. What matters most is run first, a seed at a time, so that a
stop leaves whole seeds.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from cotenant.controller.papers.gfs.forecast import Demand, Floats, Forecaster, ForecastModel, LastChange
from cotenant.controller.sim import (
    Cluster,
    Physics,
    Scenario,
    Workload,
    pair_data,
    policies_named,
    simulate,
    workload_of,
)
from cotenant.controller.sim.results.summary import summarise
from experiments.gfs.spot import LOADS, synthesise_spot
from experiments.shared import paths
from experiments.shared.kept_runs import keep

CACHE: Final = paths.CACHE / "gfs"
HOSTS: Final = 287
KNOWN_DAYS: Final = 14
"""Of hp demand, where the history does not begin empty: `gfs` then forecasts as it is meant to."""
DAY_S: Final = 86_400.0
World = Literal["lose", "save"]
STRICT: Final = "yarn-cs:backfill=none"
"""The other reading of a baseline: nobody passes a job of its class that does not fit."""
POOL: Final = "gfs:aggregation=pool"
"""The other reading of eq. 9: one quantile of the total demand."""
KNOWING: Final = ("gfs", "gfs-rise")
"""Policies that are also run with a history of demand."""
POLICIES: Final = ("yarn-cs", "gfs", "gfs-rise", "lyra", "fgd", "chronus")
ABLATIONS: Final = ("gfs-e", "gfs-d", "gfs-s", "gfs-p", "gfs-sp")
HOURS_4: Final = "gfs:hours=4"

DAYS, HORIZON_H = 28, 2
"""A guaranteed hour that begins in mid-hour touches two."""


class Cell(NamedTuple):
    days: int
    world: World
    load: str
    policy: str
    seed: int
    known_days: int = 0
    """Of hp jobs, before the first spot job comes."""

    @property
    def file(self) -> Path:
        name = self.policy.replace(":", "_").replace("=", "-").replace(",", "_")
        known = f"-{self.known_days}known" if self.known_days else ""
        return CACHE / f"{self.days}d-{self.world}{known}" / f"{self.load}-{name}-{self.seed}.json"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run. Times in seconds, means over jobs."""

    hp_jct_s: float
    hp_jct_p99_s: float
    hp_wait_s: float
    spot_jct_s: float
    spot_wait_s: float
    evicted: float
    broken: float
    allocated: float
    lost_gpu_h: float
    decision_ms: float
    decision_p99_ms: float
    hp_preemptions: int
    jobs: int
    cpu_s: float
    commit: str


def cells(days: int, seeds: Sequence[int]) -> Iterator[Cell]:
    for seed in seeds:
        yield from (Cell(days, "lose", "gfs-4x", policy, seed) for policy in (*POLICIES, STRICT, POOL))
    for seed in seeds:
        yield from (Cell(days, "lose", "gfs", policy, seed) for policy in POLICIES)
    for seed in seeds:
        others = (*POLICIES, *ABLATIONS, HOURS_4)
        yield from (Cell(days, "lose", "gfs-2x", policy, seed) for policy in others)
    for seed in seeds:
        yield from (Cell(days, "lose", "gfs-4x", policy, seed, KNOWN_DAYS) for policy in KNOWING)


def load(cell: Cell) -> Row | None:
    return msgspec.json.decode(cell.file.read_bytes(), type=Row) if cell.file.exists() else None


def jobs_of(load: str, days: int, seed: int, pairs: str = "none") -> tuple[Workload, Cluster]:
    """The generated jobs of a load, with the models of a table of pairs, and GFS's cluster."""
    trace = synthesise_spot(seed=seed, days=days, spot_scale=LOADS[load])
    asked = Scenario(trace=trace.name, hosts=HOSTS, pairs=pairs)
    return workload_of(asked, trace, pair_data(pairs), seed), asked.cluster


def from_day(workload: Workload, day: int) -> Workload:
    """Without the spot jobs of the days before."""
    kept = workload.hp | (workload.submit_s >= day * DAY_S)
    return dataclasses.replace(workload.take(kept), job_ids=())


def run(cell: Cell, commit: str) -> None:
    """In a process of its own."""
    began_s = time.process_time()
    (choice,) = policies_named(cell.policy)
    workload, cluster = jobs_of(cell.load, cell.days + cell.known_days, cell.seed)
    if cell.known_days:
        workload = from_day(workload, cell.known_days)
    physics = Physics(pairs="none", on_preempt=cell.world)
    outcome = simulate(workload, cluster, choice.name, choice.parameters, physics=physics)
    found = summarise(outcome)
    hp, spot = found["hp"], found["spot"]
    row = Row(
        hp_jct_s=hp["jct_s"]["mean"],
        hp_jct_p99_s=hp["jct_s"]["p99"],
        hp_wait_s=hp["wait_s"]["mean"],
        spot_jct_s=spot["jct_s"]["mean"],
        spot_wait_s=spot["wait_s"]["mean"],
        evicted=spot["eviction_rate"],
        broken=spot["broken_ratio"],
        allocated=found["allocation_ratio"],
        lost_gpu_h=found["lost_gpu_s"] / 3600.0,
        decision_ms=found["decision_ms"]["mean"],
        decision_p99_ms=found["decision_ms"]["p99"],
        hp_preemptions=hp["preemptions"],
        jobs=found["jobs"],
        cpu_s=time.process_time() - began_s,
        commit=commit,
    )
    keep(row, cell.file)


class Excess(NamedTuple):
    """Reserved / asked for at most in the hours ahead, less 1: means over hours."""

    day_2: float
    after_two_weeks: float


class Reserved(NamedTuple):
    organisations: int
    by_organisation: Excess
    of_the_total: Excess
    peak: float
    """Mean hourly peak of hp demand / GPUs of the cluster."""


def reserved(seed: int = 0) -> Reserved:
    """Of the generated hp demand, forecast as `gfs` does before a model is trained."""
    demand = hourly_peaks(seed)
    total = demand.sum(axis=0)
    return Reserved(
        len(demand),
        excess(demand, total),
        excess(total[np.newaxis], total),
        float(total.mean()) / (8 * HOSTS),
    )


def hourly_peaks(seed: int) -> Floats:
    """Hp demand, granted or not; shape (organisations, hours)."""
    trace = synthesise_spot(seed=seed, days=DAYS, spot_scale=0.0)
    found = np.zeros((len(trace.organisation.names), DAYS * 24))
    for number in range(len(found)):
        mine = trace.hp & (trace.organisation.codes == number)
        begins, gpus = trace.submit_s[mine], trace.gpus[mine]
        at_s = np.concatenate((begins, begins + trace.duration_s[mine]))
        change = np.concatenate((gpus, -gpus))
        order = np.lexsort((change, at_s))
        at_s, level = at_s[order], np.cumsum(change[order])
        for hour in range(DAYS * 24):
            first, after = np.searchsorted(at_s, (hour * 3600.0, (hour + 1) * 3600.0))
            found[number, hour] = level[max(first - 1, 0) : max(after, 1)].max(initial=0.0)
    return found


def excess(demand: Floats, total: Floats) -> Excess:
    """Of the sum of each row's highest .9 quantile over the highest total."""
    model = ForecastModel(
        fitted=LastChange(why=""), series=("total",), horizon_h=HORIZON_H, levels=(0.5, 0.9), dated=False,
        errors=(), hours=0, last_hour=0, seed=0, made_by="reserved",
    )  # fmt: skip
    forecaster, names, over = Forecaster(model), tuple(f"row{n}" for n in range(len(demand))), []
    for hour in range(24, DAYS * 24 - HORIZON_H):
        known = Demand(names=names, values=demand[:, : hour + 1], first_hour=0, dated=False)
        highest = forecaster.forecast(known).quantiles[: len(demand), :, 1].max(axis=1).sum()
        over.append(highest / total[hour + 1 : hour + 1 + HORIZON_H].max() - 1.0)
    return Excess(float(np.mean(over[:24])), float(np.mean(over[13 * 24 :])))
