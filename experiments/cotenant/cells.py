"""The runs behind results/cotenant.md: windows of Philly's VCs, each at the same offered loads.

Rule: the policies of a cell get the same jobs. A window's arrivals are stretched or squeezed until its own
jobs offer the load that the cell names; so load 1 is contended in every VC.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from cotenant.controller.sim import (
    Cluster,
    Physics,
    Scenario,
    Workload,
    pair_data,
    policies_named,
    scenario,
    simulate,
)
from experiments.shared import kept_runs, paths

FOLDER: Final = paths.CACHE / "cotenant"
VERSION: Final = 1
"""Of the result's form and of what a run means: raise it when the policy or the simulated world changes."""

MINE: Final = "cotenant"
EXCLUSIVE: Final = ("patient", "srtf")
SHARING: Final = (MINE, "castor-cost", "castor")
PAIRS: Final = ("gavel-v100", "gavel-k80", "gavel-p100")
ALONE: Final = "none"
VCS: Final = ("ee9e8c", "0e4a51", "b436b2", "6c71a0", "103959", "e13805", "6214e9", "ed69ec")
"""All of the bundled ones but one of 63 jobs. The first four were there when the rule was found."""
LOADS: Final = (0.7, 1.0, 2.0, 4.0)
WINDOWS: Final = 5
FEWER: Final = 2
"""Windows where more would take long, or say little more."""
WINDOW_JOBS: Final = 300
GPUS_PER_HOST: Final = 8
VENUS: Final = "venus"
"""Gangs of up to 128, from Helios; read where it lies and kept nowhere. Nothing was ever tuned on it."""
HOSTS: Final = {VENUS: 20}
"""Others have 8."""
NOISE: Final = 0.7
"""Sigma of estimates that are wrong, where they are."""


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One run."""

    vc: str
    load: float
    window: int
    policy: str
    pairs: str = PAIRS[0]
    noise: float = 0.0

    @property
    def file(self) -> Path:
        key = hashlib.blake2b(msgspec.json.encode([VERSION, self]), digest_size=12).hexdigest()
        return FOLDER / f"{VERSION}-{key}.json"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run. Seconds."""

    cell: Cell
    commit: str
    jobs: int
    mean_s: float
    median_s: float
    p95_s: float
    p99_s: float
    preemptions: int
    futile_s: float
    shared: int
    decision_ms: float
    """An event's mean, policy included."""
    cpu_s: float


def cells() -> Iterator[Cell]:
    """All of them: first every VC and load once, then again on the next window."""
    yield from of_pairs(PAIRS[0], (*EXCLUSIVE, *SHARING))
    yield from of_pairs(PAIRS[1], SHARING)
    for vc in VCS:
        for policy in (MINE, "patient"):
            yield Cell(vc=vc, load=2.0, window=0, policy=policy, pairs=ALONE)
    for window in range(FEWER):
        for vc in VCS:
            for load in (1.0, 2.0):
                for policy in (MINE, "patient", "castor-cost"):
                    yield Cell(vc=vc, load=load, window=window, policy=policy, noise=NOISE)
    if venus_file().exists():
        yield from of_pairs(PAIRS[0], (*EXCLUSIVE, *SHARING), (VENUS,), FEWER)
        yield from of_pairs(PAIRS[1], SHARING, (VENUS,), FEWER)
    yield from of_pairs(PAIRS[2], SHARING)


def of_pairs(
    pairs: str, policies: Sequence[str], vcs: Sequence[str] = VCS, windows: int = WINDOWS
) -> Iterator[Cell]:
    for window in range(windows):
        for vc in vcs:
            for load in LOADS:
                for policy in policies:
                    yield Cell(vc=vc, load=load, window=window, policy=policy, pairs=pairs)


def venus_file() -> Path:
    folder = Path(os.environ.get("COTENANT_SHARED_DATA") or paths.ROOT.parent / "shared")
    return folder / "traces" / "helios_venus_sept_vcvGl.csv.gz"


def cluster(vc: str) -> Cluster:
    return Cluster(hosts=HOSTS.get(vc, 8), gpus_per_host=GPUS_PER_HOST)


@cache
def workload(vc: str, window: int, load: float, pairs: str, noise: float) -> Workload:
    """A window's jobs, at this load."""
    trace, on = str(venus_file()) if vc == VENUS else f"philly/{vc}", cluster(vc)
    opened = scenario.open_trace(trace)
    size = min(WINDOW_JOBS, len(opened) // WINDOWS)
    asked = Scenario(
        trace=trace,
        from_s=float(opened.submit_s[window * (len(opened) // WINDOWS)]) if window else None,
        jobs=size,
        hosts=on.hosts,
        gpus_per_host=on.gpus_per_host,
        pairs=pairs,
        noise=noise,
    )
    found = scenario.workload_of(asked, opened, pair_data(pairs), 0)
    return replace(found, submit_s=found.submit_s * (found.offered_load(on.gpus) / load))


def load(cell: Cell) -> Result | None:
    return kept_runs.read_kept(cell.file, Result)


def run(cell: Cell, commit: str) -> None:
    """In a process of its own; the result appears whole or not at all."""
    (choice,) = policies_named(cell.policy)
    outcome = simulate(
        workload(cell.vc, cell.window, cell.load, cell.pairs, cell.noise),
        cluster(cell.vc),
        choice.name,
        choice.parameters,
        physics=Physics(pairs=cell.pairs),
    )
    assert outcome.finished.all(), cell
    median_s, p95_s, p99_s = np.quantile(outcome.jct_s, (0.5, 0.95, 0.99)).tolist()
    result = Result(
        cell=cell,
        commit=commit,
        jobs=len(outcome.workload),
        mean_s=float(outcome.jct_s.mean()),
        median_s=median_s,
        p95_s=p95_s,
        p99_s=p99_s,
        preemptions=int(outcome.preemptions.sum()),
        futile_s=float(outcome.futile_s.sum()),
        shared=int(outcome.shared.sum()),
        decision_ms=float(outcome.decision_ns.mean()) / 1e6,
        cpu_s=outcome.cpu_s,
    )
    kept_runs.keep(result, cell.file)
