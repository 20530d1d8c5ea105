"""How sure a ratio of two policies is: a paired block bootstrap.

Rule: what is drawn again is whole windows, with both policies' numbers of a window kept together, and where
there are several groups of windows (VCs, cluster sizes) whole groups first. Jobs of one window depend on each
other, and so do windows of one VC: to draw them one by one would make every interval too narrow.

A group's ratio is that of its sums, so a window in which nobody waits says little and never divides by zero;
over groups it is the geometric mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS: Final = 2000
Pairs = Sequence[tuple[float, float]]
"""Of each window: the policy's number, and the other's that it is set against."""


class Ratio(NamedTuple):
    """Below 1 the policy's number is the lower one. The 95 % interval is None where one window is all."""

    mean: float
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def ratio(groups: Sequence[Pairs], *, seed: int = 0, draws: int = DRAWS) -> Ratio | None:
    """None where one of the two has nothing at all (nobody waited) in every group."""
    tables = [np.asarray(group, dtype=np.float64) for group in groups if len(group)]
    tables = [table for table in tables if np.all(table.sum(axis=0) > 0.0)]
    if not tables:
        return None
    mean = float(np.exp(np.mean([_log(table.sum(axis=0)) for table in tables])))
    if sum(map(len, tables)) < 2:
        return Ratio(mean, None, None)
    generator = np.random.default_rng(seed)
    logs = np.zeros(draws)
    for _ in tables:  # One place of the sample after the other.
        which = generator.integers(len(tables), size=draws)
        if len(tables) == 1:
            which[:] = 0
        for number, table in enumerate(tables):
            here = np.flatnonzero(which == number)
            picked = generator.integers(len(table), size=(len(here), len(table)))
            logs[here] += _log(table[picked].sum(axis=1))
    low, high = np.nanpercentile(np.exp(logs / len(tables)), (2.5, 97.5))
    return Ratio(mean, float(low), float(high))


def _log(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """NaN where one of the two has nothing in a sample."""
    one, other = sums[..., 0], sums[..., 1]
    known = (one > 0.0) & (other > 0.0)
    found: NDArray[np.float64] = np.log(np.where(known, one, np.nan) / np.where(known, other, np.nan))
    return found
