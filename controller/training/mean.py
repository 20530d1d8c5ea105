"""The mean of numbers: the smallest computation, which shows (and tests) the way there and back."""

from __future__ import annotations

import statistics

from cotenant.controller.training.kinds import Answer
from cotenant.controller.wire.compute import Payload


def answer(payload: Payload) -> Answer:
    """`{"values": [...]}` -> their mean."""
    values = payload.get("values")
    if not isinstance(values, list) or not values:
        raise ValueError("`values` must be a list of numbers")
    return "", (statistics.fmean(values),)
