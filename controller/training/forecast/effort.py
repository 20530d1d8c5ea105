"""How much work a training does. The page of results, the controller and `forecast evaluate` do all of it;
tests of other things do less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    trees: int = 200
    """Trees per level, learned one after the other."""
    trees_rate: float = 0.04
    rows_max: int = 160_000
    """More rows are thinned out at random, so that hundreds of organisations do not take an hour to train."""
    deepar_steps: int = 1200


FULL: Final = Effort()
