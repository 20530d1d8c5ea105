"""How much longer a job trains, given what it has had and how long runs like it took.

Each run stands for a log-logistic distribution around its length, the narrower the more runs there are and
the closer together they lie. One more stands for whatever was not seen: around the median, with the tail of
Lindy's law, so that a job that outlives its siblings is expected to need as long again as it has had, and a
little more. A running one is known to be longer than what it has had: its weight goes to all that were longer
(Efron 1967, which makes Kaplan and Meier's estimate).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

SPREAD: Final = 0.7
"""Deviation of the logarithm of lengths within a family before two are known, an assumption; it counts as
much as `SPREAD_COUNTS` runs."""
SPREAD_COUNTS: Final = 2.0
OF_LOGISTIC: Final = math.sqrt(3.0) / math.pi
"""Scale of a logistic distribution with deviation 1."""
TENTHS: Final = tuple(place / 10 for place in range(1, 10))


class _Kernel(NamedTuple):
    weight: float
    around_s: float
    scale: float

    def left_s(self, had_s: float) -> list[tuple[float, float]]:
        """What is left after `had_s` at each tenth, and the weight of each."""
        stays = 1.0 / (1.0 + (had_s / self.around_s) ** (1.0 / self.scale))
        share = self.weight * stays / len(TENTHS)
        if share <= 0.0:
            return []
        found = [(self.around_s * ((1.0 - stays * u) / (stays * u)) ** self.scale, share) for u in TENTHS]
        return [(max(0.0, length_s - had_s), share) for length_s, share in found]


def left_s(ended_s: Sequence[float], running_s: Sequence[float], had_s: float) -> tuple[float, float, float]:
    """The likely training seconds left (the median), and those that a tenth stays below and a tenth exceeds.
    `ended_s`: lengths of runs that have ended, one at least. `running_s`: what unfinished ones have had."""
    kernels = [_Kernel(1.0, median(ended_s), 1.0), *_kernels(ended_s, running_s)]
    points = sorted(point for kernel in kernels for point in kernel.left_s(had_s))
    total = sum(share for _, share in points)
    likely_s, low_s, high_s = (_quantile(points, share * total) for share in (0.5, 0.1, 0.9))
    return likely_s, low_s, high_s


def _kernels(ended_s: Sequence[float], running_s: Sequence[float]) -> list[_Kernel]:
    scale = OF_LOGISTIC * _spread(ended_s) * len(ended_s) ** -0.2  # Silverman's rule, nearly.
    runs = sorted([*((each, False) for each in ended_s), *((each, True) for each in running_s if each > 0.0)])
    kernels, weight = list[_Kernel](), 1.0
    for place, (length_s, is_running) in enumerate(runs):
        longer = len(runs) - place - 1
        if not is_running:
            kernels.append(_Kernel(weight, length_s, scale))
        elif longer:
            weight *= 1.0 + 1.0 / longer
        else:  # No other was longer: it has half of what it takes behind it, as far as is known.
            kernels.append(_Kernel(weight, 2.0 * length_s, 1.0))
    return kernels


def _spread(ended_s: Sequence[float]) -> float:
    logs = [math.log(each) for each in ended_s]
    mean = fmean(logs)
    squares = sum((each - mean) ** 2 for each in logs)
    return math.sqrt((SPREAD_COUNTS * SPREAD**2 + squares) / (SPREAD_COUNTS + len(logs) - 1))


def _quantile(points: Sequence[tuple[float, float]], weight: float) -> float:
    passed = 0.0
    for value, share in points:
        passed += share
        if passed >= weight * (1.0 - 1e-9):
            return value
    return points[-1][0]
