"""The simulated half of results/unharmed.md: what filling hp jobs' idle halves brings and costs, what a bound
for every job costs a policy, and the makespan of one server.

Rule: runs that are compared get the same jobs. "Alone" is the same policy where the jobs in question never
share. Philly says nothing of classes: `HP_SHARE` of its jobs, drawn, are hp.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import msgspec
import numpy as np

from cotenant.controller.sim import Cluster, Physics, Workload, policies_named, simulate
from cotenant.controller.sim.results.summary import summarise
from experiments.cotenant import cells as windows
from experiments.gfs import scheduling_runs
from experiments.shared import kept_runs, paths

FOLDER: Final = paths.CACHE / "unharmed"
VERSION: Final = 1
"""Of the result's form and of what a run means: raise it when a policy or the simulated world changes."""
VCS: Final = ("ee9e8c", "0e4a51", "b436b2", "6c71a0")
GFS: Final = "GFS, an eighth"
"""Every eighth job of GFS's synthetic day, on an eighth of its 287 hosts."""
GFS_PART: Final = 8
GFS_DAYS: Final = 2
SERVER: Final = "one server"
SERVER_CLUSTER: Final = Cluster(hosts=1, gpus_per_host=4)
SERVER_JOBS: Final = 60
"""Of a window, those that fit on the server; they come at twice the rate that it can do alone."""
SEEDS: Final = 3
HP_SHARE: Final = 0.3
HP_MAX: Final = 1.05
MAX: Final = 1.5
"""The bound of jobs that name none, as the controller sets it."""


class Way(NamedTuple):
    """A policy, and who may share in its world."""

    policy: str
    share_max: float = 0.0
    share_hp: float = 0.0
    pairs: str = windows.PAIRS[0]


HP_ALONE, HP_SHARES = Way("gfs-rise"), Way("gfs-rise", share_hp=HP_MAX)
MINE_HP: Final = Way("cotenant", MAX, HP_MAX)
CLASSES: Final = (HP_ALONE, HP_SHARES, Way("cotenant", MAX), MINE_HP)
BOUNDED: Final = tuple(
    Way(policy, bound) for policy in ("cotenant", "castor-cost", "castor") for bound in (0.0, MAX)
)
ALONE: Final = Way("cotenant", pairs=windows.ALONE)


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One run. On Philly's VCs the seed is also the number of the window."""

    ground: str
    seed: int
    way: Way

    @property
    def file(self) -> Path:
        key = hashlib.blake2b(msgspec.json.encode([VERSION, self]), digest_size=12).hexdigest()
        return FOLDER / f"{VERSION}-{key}.json"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run: seconds, one entry per job, or a mean over spot jobs."""

    cell: Cell
    commit: str
    jct_s: list[float]
    slowdown: list[float]
    """Training time over that alone, of each job."""
    hp: list[bool]
    spot_wait_s: float | None
    evictions: float | None
    makespan_s: float
    cpu_s: float

    def mean_s(self, hp: bool | None = None) -> float:
        """The mean completion time of a class; None: of all."""
        return fmean(s for s, is_hp in zip(self.jct_s, self.hp, strict=True) if hp in (None, is_hp))


def cells() -> list[Cell]:
    """Seed by seed, so that a stop leaves whole ones."""

    def found() -> Iterator[Cell]:
        for seed in range(SEEDS):
            for ground in (*VCS, GFS):
                yield from (Cell(ground=ground, seed=seed, way=way) for way in CLASSES)
            for ground in VCS:
                yield from (Cell(ground=ground, seed=seed, way=way) for way in BOUNDED)
            yield from (Cell(ground=SERVER, seed=seed, way=way) for way in (ALONE, *BOUNDED))

    return list(dict.fromkeys(found()))


@cache
def jobs_of(ground: str, seed: int, pairs: str) -> tuple[Workload, Cluster]:
    """The jobs of a ground, and where they run."""
    if ground == GFS:
        found, on = scheduling_runs.jobs_of("gfs", GFS_DAYS, seed, pairs)
        return found.take(np.arange(0, len(found), GFS_PART)), replace(on, hosts=on.hosts // GFS_PART)
    vc = VCS[seed % len(VCS)] if ground == SERVER else ground
    found, on = windows.workload(vc, seed, 1.0, pairs, 0.0), windows.cluster(vc)
    if ground == SERVER:
        on = SERVER_CLUSTER
        found = found.take(np.flatnonzero(found.gpus <= on.gpus)[:SERVER_JOBS])
        found = replace(found, submit_s=found.submit_s * (found.offered_load(on.gpus) / 2.0))
    hp = np.random.default_rng([seed, len(found)]).random(len(found)) < HP_SHARE
    return replace(found, hp=hp), on


def load(cell: Cell) -> Result | None:
    return kept_runs.read_kept(cell.file, Result)


def run(cell: Cell, commit: str) -> None:
    """In a process of its own; the result appears whole or not at all."""
    way = cell.way
    (choice,) = policies_named(way.policy)
    workload, cluster = jobs_of(cell.ground, cell.seed, way.pairs)
    physics = Physics(pairs=way.pairs, share_max=way.share_max, share_hp=way.share_hp)
    outcome = simulate(workload, cluster, choice.name, choice.parameters, physics=physics)
    assert outcome.finished.all(), cell
    spot = summarise(outcome)["spot"] or {"wait_s": {"mean": None}, "eviction_rate": None}
    result = Result(
        cell=cell,
        commit=commit,
        jct_s=outcome.jct_s.tolist(),
        slowdown=(outcome.run_s / workload.duration_s).tolist(),
        hp=workload.hp.tolist(),
        spot_wait_s=spot["wait_s"]["mean"],
        evictions=spot["eviction_rate"],
        makespan_s=outcome.makespan_s,
        cpu_s=outcome.cpu_s,
    )
    kept_runs.keep(result, cell.file)
