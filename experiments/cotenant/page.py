"""The page: every number and every verdict is computed from the runs.

Rule: a ratio is of the same jobs under two policies; below 1 cotenant is the better one. A cell (VC and load)
is the sum over its windows; over cells it is the geometric mean, with a paired bootstrap that draws VCs, then
loads, then windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.paired import Ratio, ratio
from experiments.cotenant.cells import (
    ALONE,
    EXCLUSIVE,
    LOADS,
    MINE,
    NOISE,
    PAIRS,
    VCS,
    VENUS,
    WINDOW_JOBS,
    WINDOWS,
    Cell,
    Result,
)
from experiments.shared.tables import header, row_of, said, saved

OTHERS: Final = ("patient", "srtf", "castor-cost", "castor")
MOST: Final = 1.03
"""What a default may lose in a cell."""
Number = Callable[[Result], float]
At = tuple[str, float]
"""A VC and a load."""
CELLS: Final = tuple((vc, load) for vc in VCS for load in LOADS)
"""Of Philly: what is averaged."""
EVERY: Final = (*CELLS, *((VENUS, load) for load in LOADS))
NAMES: Final = {name: f"{name.removeprefix('gavel-').upper()} pairs" for name in PAIRS}


def mean_s(result: Result) -> float:
    return result.mean_s


class Runs:
    """Results by cell. What shares nothing is the same with any pairs."""

    def __init__(self, results: Iterable[Result], noise: float = 0.0) -> None:
        self._known, self._noise = {one.cell: one for one in results if one.cell.noise == noise}, noise

    def get(self, at: At, window: int, policy: str, pairs: str) -> Result | None:
        pairs = PAIRS[0] if policy in EXCLUSIVE and pairs != ALONE else pairs
        wanted = Cell(vc=at[0], load=at[1], window=window, policy=policy, pairs=pairs, noise=self._noise)
        return self._known.get(wanted)

    def both(self, at: At, other: str, pairs: str) -> list[tuple[Result, Result]]:
        """The windows that both have."""
        found = []
        for window in range(WINDOWS):
            mine, theirs = (self.get(at, window, each, pairs) for each in (MINE, other))
            if mine is not None and theirs is not None:
                found.append((mine, theirs))
        return found

    def cell(self, at: At, other: str, pairs: str, of: Number = mean_s) -> float | None:
        windows = self.both(at, other, pairs)
        total = sum(of(theirs) for _, theirs in windows)
        return sum(of(mine) for mine, _ in windows) / total if total else None

    def ratio(self, cells: Sequence[At], other: str, pairs: str, of: Number = mean_s) -> Ratio | None:
        groups = [
            [[(of(a), of(b)) for a, b in self.both(at, other, pairs)] for at in cells if at[0] == vc]
            for vc in (*VCS, VENUS)
        ]
        return ratio([group for group in groups if any(group)])

    def mine(self, pairs: str) -> list[Result]:
        return [one for cell, one in self._known.items() if cell.policy == MINE and cell.pairs == pairs]

    def worst(self, other: str, pairs: str) -> tuple[float, At]:
        """The cell in which it does least well against one."""
        found = [(value, at) for at in CELLS if (value := self.cell(at, other, pairs)) is not None]
        return max(found, default=(float("nan"), CELLS[0]))

    def default_loss(self, pairs: str) -> tuple[float, At]:
        """The same against the better of patient and castor-cost in each cell."""
        found = []
        for at in EVERY:
            values = [self.cell(at, other, pairs) for other in ("patient", "castor-cost")]
            known = [value for value in values if value is not None]
            if known:
                found.append((max(known), at))
        return max(found, default=(float("nan"), CELLS[0]))


def text(
    results: Sequence[Result], asked: Sequence[Cell], others: Sequence[str], machine: str, folder: Path
) -> str:
    """Others: sections about other grounds, whole."""
    runs, wrong = Runs(results), Runs(results, NOISE)
    shown = [pairs for pairs in PAIRS if runs.mine(pairs)]
    parts = ["# cotenant: one rule of marginal cost", _answer(runs, shown), _picture(runs, shown, folder)]
    parts += [_claims(runs, shown), _beside(runs, shown), _counts(runs, shown)]
    parts += [_wrong(wrong), *others, _method(results, asked, runs, machine)]
    return "\n\n".join(parts) + "\n"


def _told(found: Ratio | None) -> str:
    if found is None:
        return "-"
    bounds = "" if found.low is None else f" ({found.low:.3f} to {found.high:.3f})"
    return f"{found.mean:.3f}{bounds}"


def _at(at: At) -> str:
    return f"{at[0]} at load {at[1]:g}"


def _answer(runs: Runs, shown: Sequence[str]) -> str:
    worst, at = max(runs.default_loss(pairs) for pairs in shown)
    gains = "; ".join(
        f"with {NAMES[pairs]}, {_told(runs.ratio(CELLS, 'patient', pairs))} of `patient`'s and "
        f"{_told(runs.ratio(CELLS, 'castor-cost', pairs))} of `castor-cost`'s"
        for pairs in shown
    )
    return said(
        """Take `cotenant` where jobs have expected times, resume and may share devices. Its mean completion
        time is, {gains}. Where it does worst, on {at}, it takes {worst:.3f} of the time of the better of
        `patient` and `castor-cost`.""",
        gains=gains,
        at=_at(at),
        worst=worst,
    )


def _picture(runs: Runs, shown: Sequence[str], folder: Path) -> str:
    sets = {}
    for pairs in shown:
        found = {other: runs.ratio(CELLS, other, pairs) for other in OTHERS}
        sets[NAMES[pairs]] = [
            plots.Range(f"to {other}", one.mean, one.low or one.mean, one.high or one.mean)
            for other, one in found.items()
            if one is not None
        ]
    title = "Mean completion time of cotenant against other policies (below 1: faster)"
    figure = plots.ranges(sets, title, "cotenant's mean / the other's, 95 % intervals", synthetic=False)
    folder.mkdir(parents=True, exist_ok=True)
    return saved(figure, folder, "answer", title)


def _claims(runs: Runs, shown: Sequence[str]) -> str:
    lines = ["## What a default has to meet", "", said(CLAIMS_SAID), ""]
    lines += header(["at most", "measured", "verdict"])

    def claim(what: str, value: float, most: float, measured: str) -> None:
        lines.append(row_of([what, measured, "met" if value <= most else "not met"]))

    futile_s = sum(one.futile_s for pairs in shown for one in runs.mine(pairs))
    claim("loads that a preemption wastes", futile_s, 0.0, f"{futile_s:g} s in all runs")
    for pairs in shown:
        name = NAMES[pairs]
        if pairs == PAIRS[0]:
            pooled = runs.ratio(CELLS, "patient", pairs)
            claim(f"{name}: 0.99 of `patient`'s mean", pooled.mean if pooled else 9.0, 0.99, _told(pooled))
            median = runs.ratio(CELLS, "patient", pairs, lambda one: one.median_s)
            claim(
                f"{name}: 1.20 of `patient`'s median",
                median.mean if median else 9.0,
                1.2,
                _told(median),
            )
        for other, most in (("patient", 1.03), ("srtf", 0.97), ("castor-cost", 1.03)):
            if pairs == PAIRS[0] or other != "srtf":
                value, at = runs.worst(other, pairs)
                claim(
                    f"{name}: {most:g} of `{other}`'s mean everywhere", value, most, f"{value:.3f}, {_at(at)}"
                )
    return "\n".join(lines)


def _beside(runs: Runs, shown: Sequence[str]) -> str:
    """Means over all VCs of Philly."""
    lines = ["## Beside other policies", "", said(BESIDE_SAID), ""]
    lines += header(["pairs", "mean over that of", *(f"load {load:g}" for load in LOADS), "all loads"])
    for pairs in shown:
        for other in OTHERS[:-1]:
            by_load = [_told(runs.ratio([(vc, load) for vc in VCS], other, pairs)) for load in LOADS]
            row = [NAMES[pairs], f"`{other}`", *by_load, _told(runs.ratio(CELLS, other, pairs))]
            lines.append(row_of(row))
    return "\n".join(lines)


def _counts(runs: Runs, shown: Sequence[str]) -> str:
    lines = [
        "## Tails, preemptions, sharing", "",
        *header(["", "median to `patient`", "P95", "P99", "preemptions", "jobs that shared"]),
    ]  # fmt: skip
    for pairs in shown:
        of: list[Number] = [lambda one: one.median_s, lambda one: one.p95_s, lambda one: one.p99_s]
        both = [pair for at in CELLS for pair in runs.both(at, "patient", pairs)]
        fewer = sum(a.preemptions for a, _ in both) / max(1, sum(b.preemptions for _, b in both))
        shared = sum(a.shared for a, _ in both) / max(1, sum(a.jobs for a, _ in both))
        lines.append(
            row_of(
                [
                    NAMES[pairs],
                    *(_told(runs.ratio(CELLS, "patient", pairs, each)) for each in of),
                    f"{100 * (fewer - 1):+.0f} %",
                    f"{100 * shared:.0f} %",
                ]
            )
        )
    return "\n".join(lines)


def _wrong(runs: Runs) -> str:
    """Where estimates are wrong."""
    lines = [
        "## Estimates that are wrong", "", said(WRONG_SAID, noise=NOISE), "",
        *header(["over that of", "mean", "median", "P99"]),
    ]  # fmt: skip
    of: list[Number] = [mean_s, lambda one: one.median_s, lambda one: one.p99_s]
    for other in ("patient", "castor-cost"):
        told = [_told(runs.ratio(CELLS, other, PAIRS[0], each)) for each in of]
        lines.append(row_of([f"`{other}`", *told]))
    return "\n".join(lines)


def _method(results: Sequence[Result], asked: Sequence[Cell], runs: Runs, machine: str) -> str:
    alone = [pair for at in CELLS for pair in runs.both(at, "patient", ALONE)]
    equal = sum(mine.mean_s == theirs.mean_s for mine, theirs in alone)
    cpu_min = sum(one.cpu_s for one in results) / 60.0
    commits = ", ".join(sorted({one.commit for one in results}))
    missing = Counter(map(_group, {*asked} - {one.cell for one in results}))
    gone = ", ".join(f"{count} of {group}" for group, count in sorted(missing.items()))
    ran = said(
        """`make results-cotenant` runs what is missing and writes this page: {there} of {asked} runs,
        {cpu:.0f} processor minutes, commits {commits}.{gone} {machine}""",
        there=len(results),
        asked=len(asked),
        cpu=cpu_min,
        commits=commits,
        gone=f" **Not run: {gone}.**" if gone else "",
        machine=machine,
    )
    text = said(METHOD, jobs=WINDOW_JOBS, windows=WINDOWS, equal=equal, alone=len(alone))
    return f"## How this page was made\n\n{text}\n\n{ran}"


def _group(cell: Cell) -> str:
    trace = "Venus" if cell.vc == VENUS else "Philly"
    return f"{trace} with {NAMES.get(cell.pairs, 'no pairs')}" + (", wrong estimates" if cell.noise else "")


CLAIMS_SAID: Final = """
    The default may lose at most 3 % to `patient` and `castor-cost` on any VC at any load. The worst case is
    given where a row says *everywhere*.
"""
BESIDE_SAID: Final = """
    Each number is `cotenant`'s mean completion time divided by that of the other policy, so below 1 is
    better: geometric means over eight Philly VCs with 95 % intervals. The kinds of pairs are Gavel's
    measured slowdowns on three types of GPU, and the policy learns them while jobs run (`--xi learned`).
"""
WRONG_SAID: Final = """
    Expected times are true ones times lognormal(0, {noise:g}); V100 pairs, loads 1 and 2, two windows of each
    VC of Philly.
"""
METHOD: Final = """
    The jobs are {windows} windows of {jobs} consecutive jobs of each VC (fewer of small VCs and of
    Venus), on 8 hosts of 8 devices (Venus: 20 hosts) that are empty at first. Arrivals are stretched
    until each window offers the load that is named. Estimates are exact, load and pause times modelled.
    Intervals are paired bootstraps that draw VCs, then loads, then windows. Without pairs (`--pairs
    none`) {equal} of {alone} runs have exactly `patient`'s mean. Venus (VC vcvGl of Helios, September
    2020) is not part of this repository. Nothing was tuned on these runs. By hand: `cotenant sim compare
    philly/ee9e8c --policies cotenant,patient`.
"""
