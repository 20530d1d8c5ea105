"""Where several waiting jobs go, decided together (RLTune section 3.3): `placement=milp` of every order."""

from cotenant.controller.policies.placement.highs import LIMIT_S, NODES_MAX, Highs
from cotenant.controller.policies.placement.program import PlacementProgram
from cotenant.controller.policies.placement.together import PlacedTogether, why_not

__all__ = ["LIMIT_S", "NODES_MAX", "Highs", "PlacedTogether", "PlacementProgram", "why_not"]
