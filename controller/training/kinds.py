"""Which slow computations there are: the kind of a `Compute` action -> the function that answers it.

A function gets the request's payload and returns numbers or a document, and the hash of the model it used.
It may import what it likes: it runs in a child process. Same payload, same model, same numbers. Short ones
are here, the others are named by their module.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable
from typing import Final

from cotenant.controller.domain import Reason, numbers, steps_in
from cotenant.controller.wire import ComputeResult, Payload
from cotenant.profiler.throughput import fit

KINDS: Final[dict[str, str]] = {
    "deferral-fit": "cotenant.controller.training.deferral:answer",
    "forecast-train": "cotenant.controller.training.forecast.train:answer",
    "mean": "cotenant.controller.training.kinds:mean",
    "throughput-fit": "cotenant.controller.training.kinds:throughput",
}


def compute(kind: str, payload: Payload) -> ComputeResult:
    """Answer a request, in this process.

    Raises:
        ValueError: there is no such kind.
    """
    place = KINDS.get(kind)
    if place is None:
        raise ValueError(f"no computation of kind {kind!r}; there are {', '.join(KINDS)}")
    module, _, name = place.partition(":")
    answer: Callable[[Payload], ComputeResult] = getattr(importlib.import_module(module), name)
    return answer(payload)


def mean(payload: Payload) -> ComputeResult:
    """`{"values": [...]}` -> their mean."""
    values = payload.get("values")
    if not isinstance(values, list) or not values:
        raise ValueError("`values` must be a list of numbers")
    return ComputeResult(values=(statistics.fmean(values),))


def throughput(payload: Payload) -> ComputeResult:
    """`domain.fitting.question` -> `domain.fitting.numbers`.

    Raises:
        ValueError: the payload is no such question, or its points determine no model; the text says why.
        SciPyMissing: no SciPy here.
    """
    found = fit(steps_in(payload))
    if isinstance(found, Reason):
        raise ValueError(str(found))
    return ComputeResult(values=numbers(found))
