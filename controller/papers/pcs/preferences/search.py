"""The search for the Pareto front: Sobol points first, then SPEA2; and what is searched: four numbers that
stand for a whole configuration (PCS, section 3.3).

Rule: a search is a function of its seed, its window and its number of evaluations. Who evaluates does not
change it; points are drawn in generations, each of which waits for all of the one before. SPEA2 is pymoo's:
70 points to begin with, then 105 children at a time by simulated binary crossover and polynomial mutation,
both with eta 20, as in the published code.

Rule: T says where classes end (the squared coefficient of variation of the sizes in a class is at most T; the
job that would overflow it opens the next class), W how much less each next class weighs (e^-iW), zeta_min and
delta how jobs are capped. Every point makes a valid configuration of at most `CLASSES_MAX` classes.

Departs from the published code, where the job that overflows a class belongs to none, and T is drawn
uniformly: most of that range makes one class.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.papers.pcs import WfqConfig
from cotenant.controller.papers.pcs.preferences.objectives import JobWindow, Objective, evaluate_config
from cotenant.controller.training import Evaluate

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
    """The search space for jobs of these sizes. Points of the unit cube are its coordinates."""

    sizes_gpu_s: tuple[float, ...]
    """Rising."""
    least: float
    most: float

    @classmethod
    def make(cls, sizes_gpu_s: Sequence[float]) -> SearchSpace:
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
        """The point of four numbers within 0 to 1; T is spread by its logarithm."""
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


INITIAL: Final = 70
CHILDREN: Final = 105
ETA: Final = 20.0
EVALUATIONS: Final = 280
VARIABLES: Final = 4


class NoPymoo(Exception):
    """The search needs it."""


class Found(NamedTuple):
    """A point that was evaluated, with its values."""

    point: Point
    values: tuple[float, ...]


class SearchProgress(NamedTuple):
    """How far a search is, and its points so far."""

    done: int
    total: int
    front: tuple[Found, ...]


def search(
    window: JobWindow,
    space: SearchSpace,
    objectives: Sequence[Objective],
    evaluate: Evaluate,
    *,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    tell: Callable[[SearchProgress], None] = lambda progress: None,
) -> list[Found]:
    """All evaluated points, in the order in which they were drawn.

    Raises:
        NoPymoo: it is not installed.
    """
    if importlib.util.find_spec("pymoo") is None:
        raise NoPymoo(
            'the search needs pymoo, which is not installed: pip install ".[pcs]" in the source folder'
        )
    generations = _Generations(min(INITIAL, evaluations), len(objectives), seed)
    found: list[Found] = []
    while len(found) < evaluations:
        units = generations.draw()[: evaluations - len(found)]
        points = [space.point(unit) for unit in units]
        calls = [(window, space.config(point), tuple(objectives)) for point in points]
        for point, values in zip(points, evaluate(evaluate_config, calls), strict=True):
            found.append(Found(point, values))
            tell(SearchProgress(len(found), evaluations, front_of(found)))
        generations.learn(units, np.array([each.values for each in found[-len(points) :]]))
    return found


def front_of(found: Sequence[Found]) -> tuple[Found, ...]:
    """The points that none beats in all objectives, each values once, by the first objective."""
    kept: dict[tuple[float, ...], Found] = {}
    for each in sorted(found, key=lambda one: one.values):
        if not any(all(a <= b for a, b in zip(other, each.values, strict=True)) for other in kept):
            kept[each.values] = each
    return tuple(kept.values())


class _Generations:
    """pymoo's SPEA2 on the unit cube, asked and told."""

    def __init__(self, initial: int, objectives: int, seed: int) -> None:
        from pymoo.algorithms.moo.spea2 import SPEA2
        from pymoo.core.problem import Problem
        from pymoo.core.termination import NoTermination
        from pymoo.operators.crossover.sbx import SBX
        from pymoo.operators.mutation.pm import PM
        from scipy.stats.qmc import Sobol

        drawn = Sobol(VARIABLES, seed=seed).random_base2(int(np.ceil(np.log2(max(2, initial)))))
        problem = Problem(n_var=VARIABLES, n_obj=objectives, xl=0.0, xu=1.0)
        self._algorithm = SPEA2(
            pop_size=initial,
            n_offsprings=CHILDREN,
            sampling=drawn[:initial],
            crossover=SBX(eta=ETA),
            mutation=PM(eta=ETA),
        )
        self._algorithm.setup(problem, termination=NoTermination(), seed=seed, verbose=False)
        self._asked: Any = None

    def draw(self) -> NDArray[np.float64]:
        self._asked = self._algorithm.ask()
        drawn: NDArray[np.float64] = self._asked.get("X")
        return drawn

    def learn(self, units: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """Learns from the points evaluated; the search ends where not all drawn points were."""
        asked = self._asked
        if asked is None or len(units) < len(asked):
            return
        for each, found in zip(asked, np.nan_to_num(values, posinf=1e30), strict=True):
            each.F = found
            each.evaluated.add("F")
        self._algorithm.tell(infills=asked)
