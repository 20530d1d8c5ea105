"""The runs behind docs/results/cotenant.md: windows of Philly's VCs, each at the same offered loads.

Rule: the policies of a cell get the same jobs. A window's arrivals are stretched or squeezed until its own
jobs offer the load that the cell names; so load 1 is contended in every VC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from cotenant.controller.sim import Physics, Scenario, Workload, pair_data, policies_named, scenario, simulate
from experiments.shared import kept_runs, paths

FOLDER: Final = paths.CACHE / "cotenant"
VERSION: Final = 1
"""Of the result's form and of what a run means: raise it when the policy or the simulated world changes."""

MINE: Final = "cotenant"
EXCLUSIVE: Final = ("patient", "srtf")
SHARING: Final = (MINE, "castor-cost", "castor")
PAIRS: Final = ("gavel-v100", "gavel-k80")
ALONE: Final = "none"
VCS: Final = ("ee9e8c", "0e4a51", "b436b2", "6c71a0", "103959", "e13805", "6214e9", "ed69ec")
"""All of the bundled ones but one of 63 jobs. The first four were there when the rule was found."""
LOADS: Final = (0.7, 1.0, 2.0, 4.0)
WINDOWS: Final = 5
WINDOW_JOBS: Final = 300
HOSTS: Final = 8
GPUS_PER_HOST: Final = 8


class Cell(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One run."""

    vc: str
    load: float
    window: int
    policy: str
    pairs: str = PAIRS[0]
    hosts: int = HOSTS

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
    """All of them: first every load and VC once, then again on the next window."""
    for pairs in PAIRS:
        policies = (*EXCLUSIVE, *SHARING) if pairs == PAIRS[0] else SHARING
        for window in range(WINDOWS):
            for vc in VCS:
                for load in LOADS:
                    for policy in policies:
                        yield Cell(vc=vc, load=load, window=window, policy=policy, pairs=pairs)
    for vc in VCS:
        for policy in (MINE, "patient"):
            yield Cell(vc=vc, load=2.0, window=0, policy=policy, pairs=ALONE)


@cache
def workload(vc: str, window: int, load: float, pairs: str, hosts: int = HOSTS) -> Workload:
    """A window's jobs, at this load."""
    trace = f"philly/{vc}"
    opened = scenario.open_trace(trace)
    size = min(WINDOW_JOBS, len(opened) // WINDOWS)
    asked = Scenario(
        trace=trace,
        from_s=float(opened.submit_s[window * (len(opened) // WINDOWS)]) if window else None,
        jobs=size,
        hosts=hosts,
        gpus_per_host=GPUS_PER_HOST,
        pairs=pairs,
    )
    found = scenario.workload_of(asked, opened, pair_data(pairs), 0)
    offered = found.offered_load(hosts * GPUS_PER_HOST)
    return replace(found, submit_s=found.submit_s * (offered / load))


def load(cell: Cell) -> Result | None:
    """From the disk; None where it was not run, or its file is damaged."""
    try:
        return msgspec.json.decode(cell.file.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        return None


def run(cell: Cell, commit: str) -> None:
    """In a process of its own; the result appears whole or not at all."""
    (choice,) = policies_named(cell.policy)
    asked = Scenario(trace=f"philly/{cell.vc}", hosts=cell.hosts, gpus_per_host=GPUS_PER_HOST)
    outcome = simulate(
        workload(cell.vc, cell.window, cell.load, cell.pairs, cell.hosts),
        asked.cluster,
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
