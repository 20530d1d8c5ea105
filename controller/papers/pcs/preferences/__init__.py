"""Which trade-offs PCS has on a workload (NSDI '24, sections 3.2 and 3.3): what an operator can ask for
(`objectives.py`), and the search for configurations that nothing beats (`search.py`; it needs pymoo, extra
`pcs`)."""

from cotenant.controller.papers.pcs.preferences.objectives import (
    METRICS,
    JobWindow,
    MeasuredRun,
    Objective,
    TriedWindow,
    parse_objectives,
)
from cotenant.controller.papers.pcs.preferences.search import (
    Found,
    NoPymoo,
    SearchSpace,
    find_front,
    front_of,
    search,
)

__all__ = [
    "METRICS",
    "Found",
    "JobWindow",
    "MeasuredRun",
    "NoPymoo",
    "Objective",
    "SearchSpace",
    "TriedWindow",
    "find_front",
    "front_of",
    "parse_objectives",
    "search",
]
