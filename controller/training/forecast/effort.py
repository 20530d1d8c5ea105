"""How much a training does. The page of results, the controller and `forecast evaluate` do all of it; tests
of what is around a training need no minute of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    trees: int = 200
    """Of each level, learned from one after the other."""
    trees_rate: float = 0.04
    rows_max: int = 160_000
    """More are thinned out at random: hundreds of organisations need no hour of training."""
    deepar_steps: int = 1200


FULL: Final = Effort()
