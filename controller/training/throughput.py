"""Fits the throughput model of one job's profile, as `cotenant.profiler.throughput` does it."""

from __future__ import annotations

from cotenant.controller.domain.fitting import numbers, steps_in
from cotenant.controller.domain.reasons import Reason
from cotenant.controller.training.kinds import Answer
from cotenant.controller.wire.compute import Payload
from cotenant.profiler.throughput import fit


def answer(payload: Payload) -> Answer:
    """`domain.fitting.question` -> `domain.fitting.numbers`.

    Raises:
        ValueError: the payload is no such question, or its points determine no model; the text says why.
        SciPyMissing: no SciPy here.
    """
    found = fit(steps_in(payload))
    if isinstance(found, Reason):
        raise ValueError(str(found))
    return "", numbers(found)
