"""Looks up the runs behind docs/results/castor.md, and makes means, ratios and intervals of them.

Rule: policies are compared seed by seed (both had the same jobs), so a ratio's interval is over seeds; over
several traces a ratio is the geometric mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from cotenant.controller.sim.results.paired import ConfidenceInterval, interval
from experiments.castor.cells import Cell, Result

Number = Callable[[Result], float]


class Ratio(NamedTuple):
    """A geometric mean over seeds, and its 95 % interval (equal where there is one seed)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


class Runs:
    """Results by their cells, of whatever kind of cell."""

    def __init__(self, results: Iterable[Result], seeds_max: int) -> None:
        self.results = {result.cell: result for result in results}
        self.seeds_max = seeds_max

    def seeds(self, cells: Callable[[int], Iterable[Cell]]) -> list[int]:
        """Those for which every cell of an experiment is there."""
        return [seed for seed in range(self.seeds_max) if all(cell in self.results for cell in cells(seed))]

    def of(self, template: Cell, seeds: Sequence[int]) -> list[Result]:
        """One run for each seed."""
        return [self.results[msgspec.structs.replace(template, seed=seed)] for seed in seeds]

    def value(self, template: Cell, seeds: Sequence[int], number: Number) -> ConfidenceInterval:
        return interval([number(result) for result in self.of(template, seeds)])

    def ratio(
        self, templates: Sequence[Cell], policy: str, base: str, seeds: Sequence[int], number: Number
    ) -> Ratio:
        """number(policy) / number(base): per seed the geometric mean over `templates`, then over seeds."""
        logs = []
        for seed in seeds:
            parts = []
            for template in templates:
                one, other = (
                    number(self.results[msgspec.structs.replace(template, seed=seed, policy=name)])
                    for name in (policy, base)
                )
                if one > 0.0 and other > 0.0:
                    parts.append(math.log(one / other))
            logs.append(math.fsum(parts) / len(parts) if parts else math.nan)
        found = interval(logs)
        return Ratio(math.exp(found.mean), math.exp(found.low), math.exp(found.high))

    def total(
        self, templates: Sequence[Cell], policy: str, seeds: Sequence[int], number: Number
    ) -> ConfidenceInterval:
        """Summed over `templates`, then the mean over seeds."""
        cells = [
            [msgspec.structs.replace(template, seed=seed, policy=policy) for template in templates]
            for seed in seeds
        ]
        return interval([math.fsum(number(self.results[cell]) for cell in each) for each in cells])

    def commits(self) -> list[str]:
        return sorted({result.commit for result in self.results.values()})


# --- Numbers of a run ----------------------------------------------------------------------------------


def at(*keys: str) -> Number:
    """A number of the summary; 0 where there is none (nothing was preempted, so nothing was futile)."""

    def find(result: Result) -> float:
        found: Any = result.summary
        for key in keys:
            found = None if found is None else found[key]
        return 0.0 if found is None else float(found)

    return find


JCT_MEAN, JCT_P50, WAIT_MEAN = at("jct_s", "mean"), at("jct_s", "p50"), at("wait_s", "mean")
