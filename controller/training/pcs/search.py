"""The search for the Pareto front: Sobol points first, then SPEA2 (PCS, section 3.3).

Rule: a search is a function of its seed, its window and its number of evaluations. Who evaluates does not
change it; points are drawn in generations, each of which waits for all of the one before.

SPEA2 is pymoo's: 70 points to begin with, then 105 children at a time by simulated binary crossover and
polynomial mutation, both with eta 20, as in the published code.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.training.parallel import Evaluate
from cotenant.controller.training.pcs.evaluating import JobWindow, evaluated
from cotenant.controller.training.pcs.objectives import Objective
from cotenant.controller.training.pcs.space import Point, SearchSpace

INITIAL: Final = 70
CHILDREN: Final = 105
ETA: Final = 20.0
EVALUATIONS: Final = 280
VARIABLES: Final = 4


class NoPymoo(Exception):
    """The search needs it."""


class Found(NamedTuple):
    """One evaluated point."""

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
        for point, values in zip(points, evaluate(evaluated, calls), strict=True):
            found.append(Found(point, values))
            tell(SearchProgress(len(found), evaluations, front_of(found)))
        generations.learn(units, np.array([each.values for each in found[-len(points) :]]))
    return found


def front_of(found: Sequence[Found]) -> tuple[Found, ...]:
    """Those that none beats in all objectives, each values once, by the first objective."""
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
