"""What the page says of the other papers' grounds; every number is from the runs of `grounds.py`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from experiments.cotenant import grounds
from experiments.cotenant.cells import MINE
from experiments.gfs import scheduling_runs
from experiments.shared.tables import header, row_of, said

SpotRows = dict[scheduling_runs.Cell, scheduling_runs.Row]


def spot(rows: SpotRows) -> str:
    """GFS's ground: the order within the classes is cotenant's, the quota gfs-rise's."""
    lines = ["## GFS's ground: two classes", "", said(SPOT_SAID, seeds=grounds.SEEDS, days=grounds.DAYS), ""]
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
    for load, name in grounds.SPOT_LOADS.items():
        for policy in grounds.SPOT_POLICIES:
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
    for load, name in grounds.SPOT_LOADS.items():
        both = [
            (row, rows.get(cell._replace(policy="gfs-rise")))
            for cell, row in rows.items()
            if (cell.load, cell.policy) == (load, grounds.SPOT_POLICIES[0])
        ]
        known = [(mine, other) for mine, other in both if other is not None]
        if known:
            jct = fmean(mine.spot_jct_s / other.spot_jct_s for mine, other in known)
            broken = [100.0 * fmean(each.broken for each in side) for side in zip(*known, strict=True)]
            found.append(
                f"at {name} {jct:.3f} of its spot JCT, {broken[0]:.2f} % broken for {broken[1]:.2f} %"
            )
    return said("Against `gfs-rise` in its own order: {found}.", found="; ".join(found)) if found else ""


def told(results: Sequence[grounds.ToldResult]) -> str:
    """PCS's windows: speed beside what people were told."""
    lines = ["## PCS's windows: what people are told", "", said(TOLD_SAID, jobs=grounds.PCS_JOBS), ""]
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
    lacking = [f"`{cell.policy}` on {cell.vc}" for cell in grounds.told_cells() if cell not in there]
    missing = ["", said("**Not run: {cells}.**", cells=", ".join(lacking))] if lacking else []
    return "\n".join([*lines, *missing, "", *_told_verdict(results)]).rstrip()


def _told_verdict(results: Sequence[grounds.ToldResult]) -> list[str]:
    by = {(one.cell.vc, one.cell.policy): one for one in results}
    found = []
    for vc in grounds.PCS_VCS:
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
