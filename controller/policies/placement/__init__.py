"""Where several waiting jobs go, decided together (RLTune section 3.3): `placement=milp` of every order."""

from cotenant.controller.policies.placement.together import PlacedTogether, why_not

__all__ = ["PlacedTogether", "why_not"]
