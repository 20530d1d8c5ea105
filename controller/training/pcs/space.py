"""What is searched: four numbers that stand for a whole configuration (PCS, section 3.3).

Rule: T says where classes end (the squared coefficient of variation of the sizes in a class is at most T; the
job that would overflow it opens the next class), W how much less each next class weighs (e^-iW), zeta_min and
delta how jobs are capped. Every point makes a valid configuration of at most `CLASSES_MAX` classes.

Departs from the published code, where the job that overflows a class belongs to none, and T is drawn
uniformly: most of that range makes one class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.policies.pcs import WfqConfig

CLASSES_MAX: Final = 8
T_LEAST: Final = 0.05
WEIGHT_LEAST: Final = 1e-3
W_MOST: Final = 3.0
ZETA: Final = (0.0, 1.0)
DELTA: Final = (0.01, 0.9)


class Point(NamedTuple):
    """A configuration in short."""

    variation: float
    """T."""
    decay: float
    """W."""
    zeta_min: float
    delta: float


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Of jobs of these sizes. Points of the unit cube are its coordinates."""

    sizes_gpu_s: tuple[float, ...]
    """Rising."""
    least: float
    most: float

    @classmethod
    def of(cls, sizes_gpu_s: Sequence[float]) -> SearchSpace:
        sizes = tuple(sorted(sizes_gpu_s))
        most = max(T_LEAST * 2.0, _variation_max(sizes) * 1.001)
        low, high = math.log(T_LEAST), math.log(most)
        if len(thresholds(sizes, T_LEAST)) >= CLASSES_MAX:
            for _ in range(30):  # The least T that makes few enough classes.
                middle = (low + high) / 2.0
                too_many = len(thresholds(sizes, math.exp(middle))) >= CLASSES_MAX
                low, high = (middle, high) if too_many else (low, middle)
            low = high
        return cls(sizes, math.exp(low), most)

    def point(self, unit: Sequence[float]) -> Point:
        """Of four numbers within 0 to 1; T is spread by its logarithm."""
        t, w, zeta, delta = (min(1.0, max(0.0, float(value))) for value in unit)
        return Point(
            self.least * (self.most / self.least) ** t,
            W_MOST * (2.0 * w - 1.0),
            ZETA[0] + zeta * (ZETA[1] - ZETA[0]),
            DELTA[0] + delta * (DELTA[1] - DELTA[0]),
        )

    def config(self, point: Point) -> WfqConfig:
        ends = thresholds(self.sizes_gpu_s, point.variation)[: CLASSES_MAX - 1]
        return WfqConfig(
            thresholds_gpu_s=tuple(ends),
            weights=weights(len(ends) + 1, point.decay),
            zeta_min=point.zeta_min,
            delta=point.delta,
        )


def thresholds(sizes: Sequence[float], variation: float) -> list[float]:
    """Where classes end, of rising sizes."""
    ends: list[float] = []
    n, total, squares = 0, 0.0, 0.0
    for place, size in enumerate(sizes):
        n, total, squares = n + 1, total + size, squares + size * size
        is_over = n * squares / (total * total) - 1.0 > variation
        if is_over and n > 1 and sizes[place - 1] < size:
            ends.append(sizes[place - 1])
            n, total, squares = 1, size, size * size
    return ends


def weights(classes: int, decay: float) -> tuple[float, ...]:
    """e^-iW, none below `WEIGHT_LEAST`, with a sum of 1."""
    found = np.exp(-decay * np.arange(classes))
    found = np.maximum(found / found.sum(), WEIGHT_LEAST)
    return tuple((found / found.sum()).tolist())


def _variation_max(sizes: Sequence[float]) -> float:
    """The greatest squared coefficient of variation of the smallest so many: with it there is one class."""
    values = np.array(sizes)
    n = np.arange(1, len(values) + 1)
    return float(np.max(n * np.cumsum(values * values) / np.cumsum(values) ** 2 - 1.0))
