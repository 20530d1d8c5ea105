"""Looks up the runs behind docs/results/lazer.md, and makes ratios with intervals of them.

Rule: a ratio is of means over a window's jobs, both policies on the same windows; what it may be off by is
drawn over VCs, cluster sizes and windows (`results/paired.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cotenant.controller.sim.results.paired import Ratio, ratio
from experiments.lazer import cells
from experiments.lazer.cells import BASE, Cell, Ground, Result, Sizes

Number = Callable[[dict[str, Any]], float]
CONTENDED: Final = 1.0
"""Offered load from which on work arrives faster than the cluster can do it."""


def at(*keys: str) -> Number:
    """A number of a window's summary; 0 where there is none: nothing was preempted."""

    def find(summary: dict[str, Any]) -> float:
        found: Any = summary
        for key in keys:
            found = None if found is None else found[key]
        return 0.0 if found is None else float(found)

    return find


JCT_MEAN, JCT_P50, JCT_P95 = (at("jct_s", name) for name in ("mean", "p50", "p95"))
WAIT_MEAN, FUTILE_GPU_S, PREEMPTIONS = at("wait_s", "mean"), at("futile_s", "total_gpu_s"), at("preemptions")


class Book:
    """All results, each there."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        found = [cells.load(cell) for cell in cells.plan(sizes)]
        self.results: dict[Cell, Result] = {one.cell: one for one in found if one is not None}
        everywhere = cells.grounds(sizes)
        self.contended = [ground for ground in everywhere if self.load(ground) >= CONTENDED]
        self.light = [ground for ground in everywhere if self.load(ground) < CONTENDED]

    def load(self, ground: Ground) -> float:
        return self.results[Cell(ground=ground, policy=BASE)].offered_load

    def ratio(self, grounds: Sequence[Ground], policy: str, number: Number, base: str = BASE) -> Ratio | None:
        """Cells of a VC are a group."""
        groups: dict[str, list[list[tuple[float, float]]]] = {}
        for ground in grounds:
            pairs = [
                (number(one), number(other))
                for one, other in zip(self.windows(ground, policy), self.windows(ground, base), strict=True)
            ]
            groups.setdefault(ground.trace, []).append(pairs)
        return ratio(list(groups.values()))

    def windows(self, ground: Ground, policy: str) -> list[dict[str, Any]]:
        return self.results[Cell(ground=ground, policy=policy)].windows

    def total(self, grounds: Sequence[Ground], policy: str, number: Number) -> float:
        return sum(number(window) for ground in grounds for window in self.windows(ground, policy))

    def cpu_min(self) -> float:
        spent_s = at("cpu_s")
        return sum(spent_s(window) for result in self.results.values() for window in result.windows) / 60.0

    def commits(self) -> list[str]:
        return sorted({result.commit for result in self.results.values()})
