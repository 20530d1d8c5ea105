"""PCS's preference solver (NSDI '24, sections 3.2 and 3.3): which trade-offs there are on a workload.

    objectives + jobs -> configurations that nothing beats in all of them -> a person chooses one

Rule: a front is searched on some jobs and judged on others that came after them; both are reported, since a
point that is good on one window may not be on the next. The search itself needs pymoo (extra `pcs`).
"""

# fmt: off
from cotenant.controller.training import Backend, NoBackend, evaluator
from cotenant.controller.papers.pcs.preferences.objectives import (
    METRICS, JobWindow, Objective, evaluate_config,
)
from cotenant.controller.papers.pcs.preferences.search import Found, NoPymoo, SearchProgress, SearchSpace
from cotenant.controller.papers.pcs.preferences.solver import ParetoFront, PreferenceSolver

__all__ = [
    "METRICS", "Backend", "Found", "JobWindow", "NoBackend", "NoPymoo", "Objective", "ParetoFront",
    "PreferenceSolver", "SearchProgress", "SearchSpace", "evaluate_config", "evaluator",
]
# fmt: on
