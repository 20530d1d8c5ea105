"""The search for the Pareto front: Sobol points first, then SPEA2; what is searched: four numbers that stand
for a whole configuration (PCS, section 3.3); and the front as a document.

    objectives + jobs -> configurations that nothing beats in all of them -> a person chooses one

Rule: a front is searched on some jobs and judged on others that came after them; both are reported, since a
point that is good on one window may not be on the next. Which points are on it is decided by the first alone.

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

from cotenant.controller.papers.pcs import WfqConfig, published_form
from cotenant.controller.papers.pcs.preferences.objectives import Objective, TriedWindow, evaluate_config
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
BESIDE: Final = ("fifo", "srsf")
"""The policies at the two ends of a front: no error, and hardly a longer completion time."""


class NoPymoo(Exception):
    """The search needs it."""


class Found(NamedTuple):
    """A point that was evaluated, with its values."""

    point: Point
    values: tuple[float, ...]


OnFound = Callable[[Sequence[Found]], None]
"""Called after each evaluation with all points so far."""


def find_front(
    train: TriedWindow,
    test: TriedWindow,
    objectives: Sequence[Objective],
    evaluate: Evaluate,
    *,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    tell: OnFound = lambda found: None,
) -> dict[str, Any]:
    """The front on the jobs of `train`, as a document for JSON; its `configs` have PCS's own form.

    Raises:
        NoPymoo: it is not installed.
    """
    space = SearchSpace.make(train.sizes_gpu_s)
    found = search(train, space, objectives, evaluate, evaluations=evaluations, seed=seed, tell=tell)
    front = front_of(found)
    names = [f"p{number:02}" for number in range(1, len(front) + 1)]
    configs = [space.config(each.point) for each in front]
    tested = evaluate(evaluate_config, [(test, config, tuple(objectives)) for config in configs])

    def named(values: Sequence[float]) -> dict[str, float]:
        return {str(objective): value for objective, value in zip(objectives, values, strict=True)}

    def of_policy(policy: str) -> dict[str, float]:
        measured = test.measure(policy)
        return named([objective.value_of(measured) for objective in objectives])

    return {
        "objectives": [str(objective) for objective in objectives],
        "evaluations": len(found),
        "seed": seed,
        "front": [
            {"name": name, "train": named(each.values), "test": named(values)}
            for name, each, values in zip(names, front, tested, strict=True)
        ],
        "beside": [{"policy": policy, "test": of_policy(policy)} for policy in BESIDE],
        "configs": {name: published_form(config) for name, config in zip(names, configs, strict=True)},
    }


def search(
    window: TriedWindow,
    space: SearchSpace,
    objectives: Sequence[Objective],
    evaluate: Evaluate,
    *,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    tell: OnFound = lambda found: None,
) -> list[Found]:
    """All evaluated points, in the order in which they were drawn.

    Raises:
        NoPymoo: it is not installed.
    """
    if importlib.util.find_spec("pymoo") is None:
        raise NoPymoo(
            'the search needs pymoo, which is not installed: pip install ".[pcs]" in the source folder'
        )
    algorithm = _spea2(min(INITIAL, evaluations), len(objectives), seed)
    found: list[Found] = []
    while len(found) < evaluations:
        drawn = algorithm.ask()
        points = [space.point(unit) for unit in drawn.get("X")[: evaluations - len(found)]]
        calls = [(window, space.config(point), tuple(objectives)) for point in points]
        for point, values in zip(points, evaluate(evaluate_config, calls), strict=True):
            found.append(Found(point, values))
            tell(found)
        if len(points) == len(drawn):  # Else the search is over: it learns from whole generations.
            for each, (_, values) in zip(drawn, found[-len(points) :], strict=True):
                each.F = np.nan_to_num(values, posinf=1e30)
                each.evaluated.add("F")
            with np.errstate(divide="ignore", invalid="ignore"):  # An objective may be the same everywhere.
                algorithm.tell(infills=drawn)
    return found


def front_of(found: Sequence[Found]) -> tuple[Found, ...]:
    """The points that none beats in all objectives, each values once, by the first objective."""
    kept: dict[tuple[float, ...], Found] = {}
    for each in sorted(found, key=lambda one: one.values):
        if not any(all(a <= b for a, b in zip(other, each.values, strict=True)) for other in kept):
            kept[each.values] = each
    return tuple(kept.values())


def _spea2(initial: int, objectives: int, seed: int) -> Any:
    """pymoo's SPEA2 on the unit cube, which is asked for points and told their values."""
    from pymoo.algorithms.moo.spea2 import SPEA2
    from pymoo.core.problem import Problem
    from pymoo.core.termination import NoTermination
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from scipy.stats.qmc import Sobol

    drawn = Sobol(VARIABLES, seed=seed).random_base2(int(np.ceil(np.log2(max(2, initial)))))
    algorithm = SPEA2(
        pop_size=initial,
        n_offsprings=CHILDREN,
        sampling=drawn[:initial],
        crossover=SBX(eta=ETA),
        mutation=PM(eta=ETA),
    )
    problem = Problem(n_var=VARIABLES, n_obj=objectives, xl=0.0, xu=1.0)
    algorithm.setup(problem, termination=NoTermination(), seed=seed, verbose=False)
    return algorithm
