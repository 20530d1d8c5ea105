"""Where several waiting jobs go, decided together (RLTune section 3.3): `placement=milp` of every order."""

from cotenant.controller.papers.rltune.placement.program import (
    LIMIT_S,
    NODES_MAX,
    Highs,
    PlacementProblem,
    PlacementSolution,
)
from cotenant.controller.papers.rltune.placement.together import MILP, PlacedTogether, why_not

__all__ = [
    "LIMIT_S",
    "MILP",
    "NODES_MAX",
    "Highs",
    "PlacedTogether",
    "PlacementProblem",
    "PlacementSolution",
    "why_not",
]
