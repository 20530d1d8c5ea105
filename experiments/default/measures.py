"""What is counted from the runs: each window beside the same jobs under fifo (or another), then the median.

Rule: an interval is a bootstrap of whole windows: VCs are drawn again, then windows of each (seeds, where
jobs are generated). Jobs of several windows are never pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from experiments.default.cells import DEFAULT, FIFO, VCS, Cell, Result, windows

DRAWS: Final = 2000
SEED: Final = 7

Measure = Callable[[Result, Result], float]
"""Of a run, beside the same jobs' under another policy."""
MEAN, P99, TRIES, LATE = "mean", "p99", "tries, min", "over twice as late, %"
LOST, MOST, OVER = "lost, %", "most preemptions", "over a tenth, %"
MEASURES: Final[dict[str, Measure]] = {
    MEAN: lambda mine, other: float(np.mean(mine.jct_s) / np.mean(other.jct_s)),
    "median": lambda mine, other: np.median(mine.jct_s) / np.median(other.jct_s),
    P99: lambda mine, other: np.quantile(mine.jct_s, 0.99) / np.quantile(other.jct_s, 0.99),
    "longest wait": lambda mine, other: mine.longest_wait_s / max(1.0, other.longest_wait_s),
    TRIES: lambda mine, other: mine.tries_median_s / 60.0,
    LATE: lambda mine, other: 100.0 * float(np.mean(np.array(mine.jct_s) > 2.0 * np.array(other.jct_s))),
    LOST: lambda mine, _: 100.0 * mine.lost_share,
    MOST: lambda mine, _: float(mine.preemptions_max),
    OVER: lambda mine, _: 100.0 * mine.over_tenth_share,
}


class Middle(NamedTuple):
    """A median over windows and its 95 % interval."""

    median: float
    low: float
    high: float


def middle(groups: Sequence[Sequence[float]]) -> Middle:
    """Of the values of all groups (VCs)."""
    sizes = np.array([len(group) for group in groups])
    table = np.array([[*group, *[np.nan] * (sizes.max() - len(group))] for group in groups])
    generator = np.random.default_rng(SEED)
    which = generator.integers(len(groups), size=(DRAWS, len(groups)))
    size = sizes[which][..., None]
    picked = (generator.random((*which.shape, sizes.max())) * size).astype(np.intp)
    drawn = np.where(np.arange(sizes.max()) < size, table[which[..., None], picked], np.nan)
    ordered, count = np.sort(drawn.reshape(DRAWS, -1)), size.sum(axis=(1, 2))  # NaN is sorted to the end.
    medians = sum(ordered[np.arange(DRAWS), at // 2] for at in (count - 1, count)) / 2.0
    low, high = np.quantile(medians, (0.025, 0.975)).tolist()
    return Middle(float(np.nanmedian(table)), low, high)


SHARES: Final = {1.0: "all", 0.8: "80 %", 0.5: "half", 0.0: "none"}


class Place(NamedTuple):
    """What a row of a table is about. `ground`: a VC, or where jobs are generated; empty: all VCs."""

    load: float
    resumable: float
    tells: float
    ground: str = ""
    load_time_s: float = 0.0

    @property
    def words(self) -> str:
        load = f", loads of {self.load_time_s:g} s" if self.load_time_s else ""
        drawn = f"{SHARES[self.resumable]} resume, {SHARES[self.tells]} tell"
        return f"{self.ground or '64 GPUs'}, load {self.load:g}, {drawn}{load}"

    @property
    def pooled(self) -> Place:
        """A VC's place is that of all VCs."""
        return self._replace(ground="") if self.ground in VCS else self

    def holds(self, cell: Cell) -> bool:
        here = cell.ground == self.ground if self.ground else cell.ground in VCS
        return here and (cell.load, cell.resumable, cell.tells, cell.load_time_s) == (*self[:3], self[-1])


class Runs:
    """Results by cell."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._known = {one.cell: one for one in results}
        self._windows = [window for window in windows() if window in self._known]

    def windows(self, place: Place) -> list[Cell]:
        return [window for window in self._windows if place.holds(window)]

    def at(self, place: Place, by: str = DEFAULT, what: str = MEAN, against: str = FIFO) -> Middle | None:
        """None where nothing was run under both."""
        groups = self._values(place, by, what, against)
        return middle(list(groups.values())) if groups else None

    def worst(self, place: Place, what: str, by: str = DEFAULT) -> float | None:
        """The greatest value of all windows; None where nothing was run."""
        groups = self._values(place, by, what, FIFO)
        return max(value for group in groups.values() for value in group) if groups else None

    def _values(self, place: Place, by: str, what: str, against: str) -> dict[str, list[float]]:
        """Of each window, by VC."""
        groups: dict[str, list[float]] = {}
        for window in self.windows(place):
            mine, other = (self._known.get(window.under(each)) for each in (by, against))
            if mine is not None and other is not None:
                groups.setdefault(window.ground, []).append(MEASURES[what](mine, other))
        return groups

    def places(self) -> list[Place]:
        """All VCs together, and each of the generated."""
        return list(dict.fromkeys(each.pooled for each in self.grounds()))

    def grounds(self) -> list[Place]:
        """Each VC by itself, and each of the generated."""
        found = (
            Place(each.load, each.resumable, each.tells, each.ground, each.load_time_s)
            for each in self._windows
        )
        return list(dict.fromkeys(found))


def number(value: float, of: str) -> str:
    """As it stands in a table."""
    return f"{value:.0f}" if of in (TRIES, MOST) else f"{value:.{3 if 0.0 < value < 0.095 else 2}f}"
