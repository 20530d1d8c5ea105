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
SPOT_POLICIES: Final = (f"gfs-rise:order={MINE}", "gfs-rise", "gfs", "yarn-cs")
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
    try:
        return msgspec.json.decode(cell.file.read_bytes(), type=ToldResult)
    except (OSError, msgspec.DecodeError):
        return None


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
    lines = ["## GFS's ground: two classes", "", said(SPOT_SAID, seeds=SEEDS, days=DAYS), ""]
    if not rows:
        return "\n".join([*lines, "Not run."])
    titles = (
        "spot load",
        "policy",
        "seeds",
        "hp JCT, h",
        "spot JCT, h",
        "spot wait, h",
        "evicted %",
        "broken %",
    )
    lines += header(titles)
    for load, name in SPOT_LOADS.items():
        for policy in SPOT_POLICIES:
            found = [row for cell, row in rows.items() if (cell.load, cell.policy) == (load, policy)]
            if found:
                lines.append(row_of([name, f"`{policy}`", str(len(found)), *_spot_numbers(found)]))
    return "\n".join([*lines, "", _spot_verdict(rows)])


def _spot_numbers(rows: Sequence[scheduling_runs.Row]) -> list[str]:
    hours = [
        fmean(getattr(row, name) for row in rows) / 3600.0
        for name in ("hp_jct_s", "spot_jct_s", "spot_wait_s")
    ]
    shares = [100.0 * fmean(getattr(row, name) for row in rows) for name in ("evicted", "broken")]
    return [*(f"{value:.2f}" for value in hours), *(f"{value:.2f}" for value in shares)]


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
                f"at {name} {jct:.3f} of its spot JCT, {broken[0]:.2f} % broken for {broken[1]:.2f} %"
            )
    return said("Against `gfs-rise` in its own order: {found}.", found="; ".join(found)) if found else ""


def told(results: Sequence[ToldResult]) -> str:
    """PCS's windows: speed beside what people were told."""
    lines = ["## PCS's windows: what people are told", "", said(TOLD_SAID, jobs=PCS_JOBS), ""]
    if not results:
        return "\n".join([*lines, "Not run."])
    lines += header(
        ("VC", "policy", "mean JCT, h", "median, h", "P99, d", "error %", "P99 error %", "80 % interval held")
    )
    for one in results:
        error = one.prediction_error
        lines.append(
            row_of(
                [
                    one.cell.vc, f"`{one.cell.policy}`", f"{one.mean_s / 3600:.1f}",
                    f"{one.median_s / 3600:.2f}", f"{one.p99_s / 86400:.1f}", f"{100 * error['mean']:.0f}",
                    f"{100 * error['p99']:.0f}",
                    f"{100 * one.eta['coverage_80']:.0f} %",
                ]
            )
        )  # fmt: skip
    there = {one.cell for one in results}
    lacking = [f"`{cell.policy}` on {cell.vc}" for cell in told_cells() if cell not in there]
    missing = ["", said("**Not run: {cells}.**", cells=", ".join(lacking))] if lacking else []
    return "\n".join([*lines, *missing, "", *_told_verdict(results)]).rstrip()


def _told_verdict(results: Sequence[ToldResult]) -> list[str]:
    by = {(one.cell.vc, one.cell.policy): one for one in results}
    found = []
    for vc in PCS_VCS:
        mine, pcs = by.get((vc, MINE)), by.get((vc, "pcs-bal"))
        if mine is not None and pcs is not None:
            errors = [100 * each.prediction_error["mean"] for each in (mine, pcs)]
            found.append(
                f"on {vc} `{MINE}` takes {mine.mean_s / pcs.mean_s:.2f} of `pcs-bal`'s mean time, errs by "
                f"{errors[0]:.0f} % where it errs by {errors[1]:.0f} %"
            )
    return [said("{found}.", found=_upper("; ".join(found)))] if found else []


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


SPOT_SAID = """
    The SYNTHETIC workload of [gfs.md](gfs.md), {days} days, 287 hosts of 8, preempted jobs save,
    {seeds} seeds. Nothing is shared there. `gfs-rise:order=cotenant` has the classes and the quota of
    `gfs-rise`, and cotenant's order and preemption within a class.
"""
TOLD_SAID = """
    The first {jobs:,} jobs of three of PCS's VCs on 64 devices, whole devices, with loads and pauses, exact
    estimates, nothing shared. Error: |JCT - told| / told of the median told at submission, as `sim compare
    --eta` has it. `pcs-bal` is PCS's published balanced configuration of that VC.
"""
