"""The preference interface: say what matters, get the front, choose a point (PCS, section 3.2).

    solver = PreferenceSolver(train, test)
    solver.set_preference(Objective("jct"), Objective("error", "p99"))
    front = solver.pareto_front(evaluate)
    chosen = front.config("p03")             # SetWFQConfig live: `cotenant pcs set FRONT.json#p03`

Rule: objectives of a point are those of the test jobs, which the search has not seen, beside those of the
training jobs; which points are on the front is decided by the training jobs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cotenant.controller.papers.pcs import WfqConfig, published_form
from cotenant.controller.papers.pcs.fluid import fluid_jobs
from cotenant.controller.papers.pcs.preferences.objectives import JobWindow, Objective, evaluate_config
from cotenant.controller.papers.pcs.preferences.search import (
    EVALUATIONS,
    SearchProgress,
    SearchSpace,
    front_of,
    search,
)
from cotenant.controller.training import Evaluate

BESIDE: Final = ("fifo", "srsf")
"""The policies at the two ends of a front: no error, and hardly a longer completion time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontPoint:
    """A trade-off on the front; values in the order of the objectives."""

    name: str
    config: WfqConfig
    train: tuple[float, ...]
    test: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParetoFront:
    """What a search found, by the first objective."""

    objectives: tuple[Objective, ...]
    points: tuple[FrontPoint, ...]
    beside: dict[str, tuple[float, ...]]
    """Other policies on the test jobs."""
    evaluations: int
    seed: int

    def config(self, name: str) -> WfqConfig:
        """Returns the configuration of the point `name`. Raises KeyError."""
        return next(point.config for point in self.points if point.name == name)

    def document(self) -> dict[str, Any]:
        """The front as a document for JSON; `configs` has PCS's own form."""

        def named(values: Sequence[float]) -> dict[str, float]:
            return {str(objective): value for objective, value in zip(self.objectives, values, strict=True)}

        return {
            "objectives": [str(objective) for objective in self.objectives],
            "evaluations": self.evaluations,
            "seed": self.seed,
            "front": [
                {"name": point.name, "train": named(point.train), "test": named(point.test)}
                for point in self.points
            ],
            "beside": [{"policy": policy, "test": named(values)} for policy, values in self.beside.items()],
            "configs": {point.name: published_form(point.config) for point in self.points},
        }


class PreferenceSolver:
    """Finds the front of the objectives that were set."""

    def __init__(self, train: JobWindow, test: JobWindow) -> None:
        self._train, self._test = train, test
        self._objectives: tuple[Objective, ...] = (Objective("jct"), Objective("error"))

    def set_preference(self, *objectives: Objective) -> None:
        """Sets the objectives that are traded. Raises ValueError: fewer than two; there is nothing to trade
        then."""
        if len(objectives) < 2 or len(set(objectives)) < len(objectives):
            raise ValueError("name two objectives or more, each once: one alone is traded against nothing")
        self._objectives = objectives

    def pareto_front(
        self,
        evaluate: Evaluate,
        *,
        evaluations: int = EVALUATIONS,
        seed: int = 0,
        tell: Callable[[SearchProgress], None] = lambda progress: None,
    ) -> ParetoFront:
        """Searches the Pareto front of the objectives. Raises NoPymoo."""
        objectives = self._objectives
        space = SearchSpace.make([job.told_gpu_s for job in fluid_jobs(self._train.workload)])
        found = search(
            self._train, space, objectives, evaluate, evaluations=evaluations, seed=seed, tell=tell
        )
        front = front_of(found)
        configs = [space.config(each.point) for each in front]
        tested = evaluate(evaluate_config, [(self._test, config, objectives) for config in configs])
        points = tuple(
            FrontPoint(name=f"p{number:02}", config=config, train=each.values, test=values)
            for number, (each, config, values) in enumerate(zip(front, configs, tested, strict=True), 1)
        )
        beside = {policy: self._test.run(policy) for policy in BESIDE}
        return ParetoFront(
            objectives=objectives,
            points=points,
            beside={
                name: tuple(each.value_of(outcome) for each in objectives) for name, outcome in beside.items()
            },
            evaluations=len(found),
            seed=seed,
        )
