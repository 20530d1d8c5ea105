"""The forecast for a pair never observed: the mean of the default speed and each kind's own record.

Rule: only where nothing is known of the pair itself. Observations, a trained model's prediction and the duty
cycles of the two all come before the record that a kind of job has beside others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from cotenant.controller.domain import DEFAULT_XI, Interference, Job
from cotenant.controller.policies.castor.cost import CostSlots


class RecordSlots(CostSlots):
    """Slots of a plan, with ratios by record."""

    def pairs(self, jobs: Sequence[Job], partners: Sequence[Job]) -> list[list[Interference]]:
        return [[by_record(xi) for xi in row] for row in super().pairs(jobs, partners)]


def by_record(xi: Interference) -> Interference:
    """Replaces a pair's ratios, unless the pair itself is known or neither kind has a record."""
    if xi.source != "default" or (xi.first_speed is None and xi.second_speed is None):
        return xi
    return msgspec.structs.replace(xi, first=ratio(xi.first_speed), second=ratio(xi.second_speed))


@lru_cache(maxsize=1024)
def ratio(speed: float | None) -> float:
    """The interference ratio of a kind with this mean speed beside others."""
    return DEFAULT_XI if speed is None else 2.0 / (1.0 / DEFAULT_XI + speed)
