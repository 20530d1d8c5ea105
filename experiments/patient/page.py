"""The page: every number, and every verdict that depends on one, is computed from the runs.

Rule: a ratio is of mean completion times over the same jobs; below 1 patient is better. Intervals are paired
bootstraps that draw VCs, then windows of each, then cluster sizes of each window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.sim.results import plots
from experiments.patient.runs import FULL, NEW, OLD, SET_ONLY, VICTIM, WINDOW_JOBS, Cell, Row
from experiments.shared.tables import said, saved

DRAWS: Final = 2000
SEED: Final = 11
EQUAL: Final = 1.005
"""A geometric mean up to this is as good."""


class Ratio(NamedTuple):
    """Geometric mean over cells, a 95 % interval, the worst cell, and how many there are."""

    mean: float
    low: float
    high: float
    worst: float
    cells: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


class Runs:
    """Rows by cell and policy."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {(row.cell, row.policy): row for row in rows}
        self.cells = list(dict.fromkeys(cell for cell, _ in self._rows))

    def get(self, cell: Cell, policy: str) -> Row | None:
        return self._rows.get((cell, policy))

    def all(self) -> Iterable[Row]:
        return self._rows.values()

    def ratio(
        self, policy: str, to: str, cells: Sequence[Cell], of: Callable[[Row], float] = lambda row: row.mean_s
    ) -> Ratio | None:
        """Over the cells that have both; None if there are none."""
        logs: dict[str, dict[int, list[float]]] = {}
        for cell in cells:
            mine, theirs = self.get(cell, policy), self.get(cell, to)
            if mine is not None and theirs is not None:
                value = float(np.log(of(mine) / of(theirs)))
                logs.setdefault(cell.trace, {}).setdefault(cell.first, []).append(value)
        values = [value for windows in logs.values() for sizes in windows.values() for value in sizes]
        if not values:
            return None
        low, high = np.exp(np.quantile(_redrawn(logs), [0.025, 0.975]))
        mean, worst = np.exp([np.mean(values), np.max(values)])
        return Ratio(float(mean), float(low), float(high), float(worst), len(values))

    def of_kind(self, kind: str) -> list[Cell]:
        """With load times as they are."""
        return [cell for cell in self.cells if cell.kind == kind and cell.load_times == 1.0]

    def by_load(self, contended: bool) -> list[Cell]:
        """Windows whose jobs ask for more than the cluster can do while they arrive, or the others."""
        found = [(cell, self.get(cell, NEW)) for cell in self.of_kind("window")]
        return [cell for cell, row in found if row is not None and (row.load >= 1.0) == contended]


def _redrawn(logs: dict[str, dict[int, list[float]]]) -> list[float]:
    generator = np.random.default_rng(SEED)
    traces = [[np.array(sizes) for sizes in windows.values()] for windows in logs.values()]
    means: list[float] = []
    for _ in range(DRAWS):
        drawn: list[float] = []
        for trace in generator.integers(len(traces), size=len(traces)):
            windows = traces[trace]
            for window in generator.integers(len(windows), size=len(windows)):
                drawn.extend(generator.choice(windows[window], len(windows[window])))
        means.append(float(np.mean(drawn)))
    return means


def text(rows: Sequence[Row], folder: Path) -> str:
    """`folder`: where the picture is written."""
    runs = Runs(rows)
    parts = ["# patient: gangs, widths and waiting", _answer(runs), _picture(runs, folder), _claims(runs)]
    parts += [_windows(runs), _whole(runs), _cost(runs), METHOD]
    return "\n\n".join(parts) + "\n"


def _answer(runs: Runs) -> str:
    windows, wide = runs.of_kind("window"), runs.of_kind("wide")
    contended = runs.ratio(NEW, FULL, runs.by_load(contended=True))
    wides = ", ".join(_of(runs, cell, NEW, FULL) for cell in wide) or "(not run)"
    return said(
        """Use `patient` where jobs resume and wait for devices: on contended windows of Philly's VCs its
        mean completion time is {contended} of `srtf-full`'s, and no load is wasted. Its rule for the
        victims of a gang brings {old} of the time that it took before. Use `srtf-full` where most gangs
        are about as wide as the cluster and loads as long as many jobs run (there `patient` takes {wides}
        times as long).""",
        contended=contended,
        old=runs.ratio(NEW, OLD, windows),
        wides=wides,
    )


def _picture(runs: Runs, folder: Path) -> str:
    sets = {}
    groups = _groups(runs)
    for to, name in ((OLD, "to patient before"), (FULL, "to srtf-full")):
        found = {group: runs.ratio(NEW, to, cells) for group, cells in groups}
        sets[name] = [
            plots.Range(group.removeprefix("philly/"), one.mean, one.low, one.high)
            for group, one in found.items()
            if one is not None
        ]
    title = "Mean completion time of patient (below 1: faster)"
    figure = plots.ranges(sets, title, "patient's mean / the other's, 95 %", synthetic=False)
    return saved(figure, folder, "answer", title)


def _short(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.mean:.3f}"


def _of(runs: Runs, cell: Cell, policy: str, to: str) -> str:
    mine, theirs = runs.get(cell, policy), runs.get(cell, to)
    return "-" if mine is None or theirs is None else f"{mine.mean_s / theirs.mean_s:.3f}"


def _claims(runs: Runs) -> str:
    windows, whole, wide = (runs.of_kind(kind) for kind in ("window", "whole", "wide"))
    lines = ["## What was claimed", "", "| claim | here | verdict |", "| --- | --- | --- |"]

    def claim(what: str, ratio: Ratio | None, holds: bool, in_part: bool = False) -> None:
        if ratio is not None:
            lines.append(f"| {what} | {ratio} | {'holds' if holds else 'in part' if in_part else 'no'} |")

    new = runs.ratio(NEW, OLD, windows)
    claim(
        "the mean is at most 0.5 % above the one before, windows", new, new is not None and new.high <= EQUAL
    )
    if new is not None:
        verdict = "holds" if new.worst <= 1.03 else "no"
        lines.append(f"| no window is more than 3 % worse than before | worst {new.worst:.3f} | {verdict} |")
    for what, cells in (
        ("103959 and e13805 are mended", whole),
        ("gangs of the whole cluster are mended", wide),
    ):
        before, now = runs.ratio(OLD, FULL, cells), runs.ratio(NEW, FULL, cells)
        better = before is not None and now is not None and now.mean < before.mean
        claim(f"{what}, to `srtf-full`", now, now is not None and now.worst <= 1.02, better)
    loads = runs.ratio(VICTIM, NEW, [*windows, *whole])
    near = loads is not None and abs(loads.mean - 1.0) < 0.005
    claim("it does not matter whose load it waits for", loads, near)
    futile = sum(row.futile for cell in runs.cells if (row := runs.get(cell, NEW)) is not None)
    lines.append(f"| no preemption wastes a load | {futile} in all runs | {'no' if futile else 'holds'} |")
    return "\n".join(lines)


def _groups(runs: Runs) -> list[tuple[str, list[Cell]]]:
    vcs = dict.fromkeys(cell.trace for cell in runs.of_kind("window"))
    groups = [("contended", runs.by_load(contended=True)), ("not contended", runs.by_load(contended=False))]
    return groups + [(vc, [cell for cell in runs.of_kind("window") if cell.trace == vc]) for vc in vcs]


def _windows(runs: Runs) -> str:
    lines = [
        "## Windows", "",
        said(WINDOWS), "",
        "| | cases | to before | to srtf-full | median to srtf-full | worst to before |",
        "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name, cells in _groups(runs):
        before, full = runs.ratio(NEW, OLD, cells), runs.ratio(NEW, FULL, cells)
        median = runs.ratio(NEW, FULL, cells, lambda row: row.median_s)
        if before is not None:
            worst = f"{before.worst:.3f}"
            lines.append(f"| {name} | {before.cells} | {before} | {full} | {_short(median)} | {worst} |")
    return "\n".join(lines)


def _whole(runs: Runs) -> str:
    lines = [
        "## Where it lost", "",
        said(LOST), "",
        "| trace | hosts | load | load times x | before | set | now |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for cell in [*runs.of_kind("whole"), *(cell for cell in runs.cells if cell.kind == "wide")]:
        row = runs.get(cell, NEW)
        if row is not None:
            ratios = " | ".join(_of(runs, cell, policy, FULL) for policy in (OLD, SET_ONLY, NEW))
            trace = cell.trace.removesuffix(".csv.gz")
            lines.append(f"| {trace} | {cell.hosts} | {row.load:.2f} | {cell.load_times:g} | {ratios} |")
    return "\n".join(lines)


def _cost(runs: Runs) -> str:
    """Processor time of the two, over the same cells."""
    spent: dict[str, list[float]] = {}
    for cell in runs.cells:
        mine, theirs = runs.get(cell, NEW), runs.get(cell, OLD)
        if mine is not None and theirs is not None:
            of = spent.setdefault(cell.trace, [0.0, 0.0])
            of[0], of[1] = of[0] + mine.cpu_s, of[1] + theirs.cpu_s
    ratios = sorted((mine_s / theirs_s, trace) for trace, (mine_s, theirs_s) in spent.items())
    ratio = sum(mine_s for mine_s, _ in spent.values()) / sum(theirs_s for _, theirs_s in spent.values())
    total = sum(row.cpu_s for row in runs.all())
    (least, cheapest), (most, dearest) = ratios[0], ratios[-1]
    text = said(
        COST, ratio=ratio, least=least, cheapest=cheapest, most=most, dearest=dearest, minutes=total / 60
    )
    return f"## Cost\n\n{text}"


WINDOWS: Final = """
    Ratios of mean completion times, with 95 % intervals. A window is contended if more work arrives than the
    cluster can do meanwhile.
"""
LOST: Final = """
    On these whole traces `patient` lost to `srtf-full`; the numbers are its mean completion time over
    that of `srtf-full`. *Set* has only the rule for a gang's victims. A job that loads is not preempted,
    so a wide gang waits for each of them: with a tenth of the load times (last row) nothing is lost.
"""
COST: Final = """
    A simulated run takes {ratio:.2f} times the processor time of `patient` before: {least:.2f} times on
    {cheapest}, {most:.2f} times on {dearest}. All runs took {minutes:.1f} processor minutes.
"""
METHOD: Final = f"""## How this page was made

`python experiments/patient/results_patient.py --wide FILE` runs what is missing and writes this page; the
runs are in [patient/runs.csv](patient/runs.csv). `FILE` is a trace of gangs as wide as its cluster that is
not part of this repository: VC vcvGl of Helios's Venus, September 2020 (1,452 jobs, 401 of them of 128 GPUs).
A window is {WINDOW_JOBS} consecutive jobs of a VC on hosts of 8 GPUs; estimates are exact, load and pause
times modelled. Intervals are paired bootstraps that draw VCs, then windows, then cluster sizes. The exponent
0.75 was chosen on the same VCs, so expect a little less elsewhere. *Before* is `{OLD}`, *set* is
`{SET_ONLY}`. By hand: `cotenant sim compare philly/103959 --hosts 2 --policies srtf-full,patient`."""
