"""The grounds of two other papers: GFS's two classes, and PCS's windows with what people were told; and what
the page says of them, every number from the runs.

Rule: the policies of a ground get the same jobs. Neither ground lets devices be shared, for neither workload
says which jobs would do what to each other: what is compared is order, preemption and prediction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec

from cotenant.controller.sim import Scenario, policies_named, run_all, tasks
from experiments.cotenant.cells import FOLDER, MINE
from experiments.gfs import scheduling_runs
from experiments.pcs.runs import config
from experiments.shared import kept_runs
from experiments.shared.tables import header, row_of, said

DAYS: Final = 2
SEEDS: Final = 3
SPOT_POLICIES: Final = (f"gfs-rise:order={MINE}", "gfs-rise")
SPOT_LOADS: Final = {"gfs": "1x", "gfs-2x": "2x", "gfs-4x": "4x"}

PCS_VCS: Final = ("0e4a51", "b436b2", "6c71a0")
"""PCS's figure 7 has them whole, on 64 devices; here the first of their jobs."""
PCS_JOBS: Final = 300
TOLD_POLICIES: Final = (MINE, "srtf", "pcs-bal")

SpotRows = dict[scheduling_runs.Cell, scheduling_runs.Row]


def spot_cells() -> list[scheduling_runs.Cell]:
    """Where preempted jobs save: cotenant's jobs resume."""
    return [
        scheduling_runs.Cell(DAYS, "save", load, policy, seed)
        for seed in range(SEEDS)
        for load in SPOT_LOADS
        for policy in SPOT_POLICIES
    ]


class ToldCell(msgspec.Struct, frozen=True, kw_only=True):
    """A VC under a policy of the catalogue, or `pcs-NAME` with a published configuration."""

    vc: str
    policy: str

    @property
    def file(self) -> Path:
        return FOLDER / f"told-{self.vc}-{self.policy}.json"


class ToldResult(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; of ETAs what `sim compare --eta` says."""

    cell: ToldCell
    commit: str
    mean_s: float
    median_s: float
    p99_s: float
    eta: dict[str, Any]
    prediction_error: dict[str, Any]
    cpu_s: float


def told_cells() -> Iterator[ToldCell]:
    for vc in PCS_VCS:
        yield from (ToldCell(vc=vc, policy=policy) for policy in TOLD_POLICIES)


def load_told(cell: ToldCell) -> ToldResult | None:
    return kept_runs.read_kept(cell.file, ToldResult)


def run_told(cell: ToldCell, commit: str) -> None:
    """In a process of its own."""
    began_s = time.process_time()
    name, _, form = cell.policy.partition("-")
    parameters = config(cell.vc, form).as_parameters() if form else {}
    asked = Scenario(trace=f"philly/{cell.vc}", jobs=PCS_JOBS, pairs="none", eta=True)
    (choice,) = policies_named(name)
    (found,) = run_all(tasks(asked, [choice._replace(parameters=parameters)], [0]), workers=1)
    jct_s = found.summary["jct_s"]
    result = ToldResult(
        cell=cell,
        commit=commit,
        mean_s=jct_s["mean"],
        median_s=jct_s["p50"],
        p99_s=jct_s["p99"],
        eta=found.summary["eta"],
        prediction_error=found.summary["prediction_error"],
        cpu_s=time.process_time() - began_s,
    )
    kept_runs.keep(result, cell.file)


def spot(rows: SpotRows) -> str:
    """GFS's ground: the order within the classes is cotenant's, the quota gfs-rise's."""
    return "\n".join(
        ["## Two classes of jobs", "", said(SPOT_SAID, seeds=SEEDS, days=DAYS), _spot_verdict(rows)]
    )


def _spot_verdict(rows: SpotRows) -> str:
    """Against the same quota with gfs-rise's own order, seed by seed."""
    found = []
    for load, name in SPOT_LOADS.items():
        both = [
            (row, rows.get(cell._replace(policy="gfs-rise")))
            for cell, row in rows.items()
            if (cell.load, cell.policy) == (load, SPOT_POLICIES[0])
        ]
        known = [(mine, other) for mine, other in both if other is not None]
        if known:
            jct = fmean(mine.spot_jct_s / other.spot_jct_s for mine, other in known)
            broken = [100.0 * fmean(each.broken for each in side) for side in zip(*known, strict=True)]
            found.append(
                f"at {name} the spot load it takes {jct:.3f} of the time and breaks {broken[0]:.2f} % of the "
                f"promises instead of {broken[1]:.2f} %"
            )
    return said("For spot jobs, {found}.", found="; ".join(found)) if found else "Not run."


def told(results: Sequence[ToldResult]) -> str:
    """PCS's windows: speed beside what people were told."""
    lines = ["## What people are told", "", said(TOLD_SAID, jobs=PCS_JOBS), ""]
    if not results:
        return "\n".join([*lines, "Not run."])
    lines += header(("VC", "policy", "mean JCT, h", "error %", "P99 error %", "80 % interval held"))
    for one in results:
        error = one.prediction_error
        lines.append(
            row_of(
                [
                    one.cell.vc, f"`{one.cell.policy}`", f"{one.mean_s / 3600:.1f}",
                    f"{100 * error['mean']:.0f}",
                    f"{100 * error['p99']:.0f}",
                    f"{100 * one.eta['coverage_80']:.0f} %",
                ]
            )
        )  # fmt: skip
    there = {one.cell for one in results}
    lacking = [f"`{cell.policy}` on {cell.vc}" for cell in told_cells() if cell not in there]
    missing = ["", said("**Not run: {cells}.**", cells=", ".join(lacking))] if lacking else []
    return "\n".join([*lines, *missing])


SPOT_SAID: Final = """
    `gfs-rise:order=cotenant` keeps the quota of `gfs-rise` and orders jobs within a class as `cotenant` does.
    On the SYNTHETIC workload of [gfs.md](gfs.md) ({days} days, {seeds} seeds, preempted jobs save, nothing is
    shared) it is compared with `gfs-rise` in its own order.
"""
TOLD_SAID: Final = """
    The first {jobs:,} jobs of three of PCS's VCs on 64 devices, with exact estimates and nothing shared. The
    error is |JCT - told| / told of the median told at submission. `pcs-bal` is PCS's published balanced
    configuration of that VC.
"""
