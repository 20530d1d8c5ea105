"""The page's part about promises: `stretch` and `promise` beside the front of PCS, and its picture.

Rule: who wins where is read from the points: a policy wins where no point of another is better in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.controller.sim.results import plots
from experiments.pcs import fronts, runs
from experiments.shared.tables import said, saved

OURS: Final = ("srsf", "stretch", "promise")
JCT_TICKS: Final = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30)
ERROR_TICKS: Final = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Point(NamedTuple):
    """One run of a whole VC."""

    jct: float
    """Mean, over that of srsf."""
    p99_percent: float
    """Of the prediction's error."""
    policy: str
    search: int = 0
    """Evaluations of the search that found it; 0: none."""

    def is_beaten(self, others: Sequence[Point]) -> bool:
        mine = self.jct, self.p99_percent
        return any(
            other.jct <= mine[0] and other.p99_percent <= mine[1] and other[:2] != mine for other in others
        )


def points(vc: str) -> list[Point]:
    """By mean JCT. Raises KeyError: something has not been run."""
    base, found = _value(runs.load(runs.Cell(vc=vc, policy="srsf")), vc)["mean_jct_s"], list[Point]()
    for cell in runs.promises() + [
        each for each in runs.figure_7() if each.policy.startswith(("srsf", "pcs"))
    ]:
        value = runs.load(cell) if cell.vc == vc else None
        if value is not None:
            found.append(
                Point(value["mean_jct_s"] / base, 100.0 * value["errors"][99], cell.policy.partition("-")[0])
            )
    for search in _searches(vc) if vc in searched() else []:
        found += [
            Point(each["mean_jct_s"] / base, 100.0 * each["p99"], "pcs", search["evaluations"])
            for each in search["judged"]
        ]
    return sorted(found)


def _searches(vc: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _value(runs.loaded(fronts.file(vc)), vc)["searches"]
    return found


def _value(value: dict[str, Any] | None, vc: str) -> dict[str, Any]:
    if value is None:
        raise KeyError(f"not everything of {vc} has been run: leave --page out")
    return value


def searched() -> list[str]:
    """The VCs whose front is there."""
    return [vc for vc in runs.VCS if runs.loaded(fronts.file(vc)) is not None]


def longest_min() -> float:
    """Processor minutes of the longest of the long searches."""
    return max((float(_searches(vc)[-1]["cpu_s"]) for vc in searched()), default=float("nan")) / 60.0


def _missing() -> list[str]:
    """What the pictures lack."""
    lacking = [f"the front of {vc}" for vc in runs.VCS if vc not in searched()]
    lacking += [f"{cell.policy} on {cell.vc}" for cell in runs.promises() if runs.load(cell) is None]
    return [f"**Not run: {', '.join(lacking)}.**", ""] if lacking else []


def section() -> str:
    text = said(
        """Two orders of ours are in no paper. `stretch` is `srsf`, but tells each job its roll-out times the
        delay by smaller jobs still to come. `promise` tells the same, and lets jobs go first whose promise
        has no slack left. Times are ratios to `srsf`'s mean, percentages the P99 of the error. PCS's points
        are its published configurations and {judged} of each front searched on the first {jobs} jobs.""",
        judged=fronts.JUDGED,
        jobs=runs.SEARCH_JOBS,
    )
    told = [said(f"* {wins(vc)}") for vc in runs.VCS]
    return "\n".join(["## Promises beside PCS's front", "", text, "", *_missing(), *told])


def wins(vc: str) -> str:
    """Which no other beats in both, and what PCS pays for the p99 of `promise`."""
    found = points(vc)
    best = [point for point in found if not point.is_beaten(found)]
    told = []
    for policy in dict.fromkeys(point.policy for point in best):
        own = [point for point in best if point.policy == policy]
        first, last = own[0], own[-1]
        said_last = "" if first == last else f" to {_place(last)}"
        told.append(f"`{policy}` at {_place(first)}{said_last}")
    text = f"On **{vc}** no other policy beats {', '.join(told)}."
    kept = next((each for each in found if each.policy == "promise"), None)
    if kept is None:
        return text
    as_good = [each.jct for each in found if each.policy == "pcs" and each.p99_percent <= kept.p99_percent]
    pays = f"PCS is as good from {min(as_good):.2f} times" if as_good else "PCS is nowhere as good"
    return f"{text} `promise` is at {_place(kept)}{', beaten' * kept.is_beaten(found)}; {pays}."


def _place(point: Point) -> str:
    return f"{point.jct:.2f} times ({point.p99_percent:.3g} %)"


def picture(folder: Path, vc: str = runs.VCS[0]) -> str:
    found = points(vc)
    series: dict[str, list[tuple[float, float]]] = {}
    for number in (fronts.MANY, fronts.FEW):
        own = [point for point in found if point.search == number]
        series[f"pcs, {number:,} tried"] = [point[:2] for point in own if not point.is_beaten(own)]
    series["pcs, published"] = [point[:2] for point in found if point.policy == "pcs" and not point.search]
    for policy in OURS:
        series[policy] = [point[:2] for point in found if point.policy == policy]
    title = f"Speed against kept predictions, philly/{vc}"
    figure = plots.trade_off(
        series, title, "mean JCT / that of srsf", "prediction error, p99 (%)", line=next(iter(series))
    )
    _scale(figure.axes[0], found)
    folder.mkdir(parents=True, exist_ok=True)
    return saved(figure, folder, f"promises-{vc}", title)


def _scale(axes: Any, found: Sequence[Point]) -> None:
    """Both by their logarithm, with plain numbers, and room around the outermost points."""
    axes.set_yscale("log")
    for axis, values, steps, room in (
        (axes.xaxis, [point.jct for point in found], JCT_TICKS, 1.06),
        (axes.yaxis, [point.p99_percent for point in found], ERROR_TICKS, 1.5),
    ):
        low, high = min(values) / room, max(values) * room
        ticks = [tick for tick in steps if low <= tick <= high]
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
        (axes.set_xlim if axis is axes.xaxis else axes.set_ylim)(low, high)
