"""How sure a ratio of two policies is: a paired block bootstrap.

Rule: what is drawn again is whole blocks, from the outside in: groups (VCs), in each its cells (cluster
sizes), in each its windows, with both policies' numbers of a window kept together. Jobs of a window depend on
each other, and so do windows of a VC: to draw them one by one would make every interval too narrow.

A cell's ratio is that of its sums, so a window in which nobody waits says little and never divides by zero;
over cells, and then over groups, it is the geometric mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS: Final = 2000
Pairs = Sequence[tuple[float, float]]
"""Of each window of a cell: the policy's number, and the other's that it is set against."""
Table = NDArray[np.float64]


class Ratio(NamedTuple):
    """Below 1 the policy's number is the lower one. The 95 % interval is None where one window is all that
    has anything to say."""

    mean: float
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def ratio(groups: Sequence[Sequence[Pairs]], *, seed: int = 0, draws: int = DRAWS) -> Ratio | None:
    """None where in every cell one of the two has nothing at all (nobody waited)."""
    tables = [[np.asarray(cell, dtype=np.float64) for cell in group if len(cell)] for group in groups]
    tables = [[table for table in group if np.all(table.sum(axis=0) > 0.0)] for group in tables]
    tables = [group for group in tables if group]
    if not tables:
        return None
    middle = [np.mean([_log(table.sum(axis=0)) for table in group]) for group in tables]
    mean = float(np.exp(np.mean(middle)))
    if sum(np.count_nonzero(table.any(axis=1)) for group in tables for table in group) < 2:
        return Ratio(mean, None, None)
    generator = np.random.default_rng(seed)
    logs = np.zeros(draws)
    for _ in tables:  # One place of the sample after the other.
        which = generator.integers(len(tables), size=draws)
        for number, group in enumerate(tables):
            here = np.flatnonzero(which == number)
            logs[here] += _of_group(group, len(here), generator)
    low, high = np.nanpercentile(np.exp(logs / len(tables)), (2.5, 97.5))
    return Ratio(mean, float(low), float(high))


def _of_group(cells: Sequence[Table], draws: int, generator: np.random.Generator) -> Table:
    """Mean logarithms over cells, of so many samples of cells and windows."""
    logs = np.zeros(draws)
    for _ in cells:
        which = generator.integers(len(cells), size=draws)
        for number, table in enumerate(cells):
            here = np.flatnonzero(which == number)
            picked = generator.integers(len(table), size=(len(here), len(table)))
            logs[here] += _log(table[picked].sum(axis=1))
    mean: Table = logs / len(cells)
    return mean


def _log(sums: Table) -> Table:
    """NaN where one of the two has nothing in a sample."""
    one, other = sums[..., 0], sums[..., 1]
    known = (one > 0.0) & (other > 0.0)
    found: Table = np.log(np.where(known, one, np.nan) / np.where(known, other, np.nan))
    return found
