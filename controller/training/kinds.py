"""Which slow computations there are: the kind of a `Compute` action -> the function that answers it.

A function gets the request's payload and returns numbers or a document, and the hash of the model it used.
It may import what it likes: it runs in a child process. Same payload, same model, same numbers. Those of the
core are here; a published system brings its own by an entry point in the group `cotenant.computations`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

from cotenant.controller.domain import Reason
from cotenant.controller.performance import numbers, steps_in
from cotenant.controller.policies import plugins
from cotenant.controller.wire import ComputeQuestion, ComputeResult, Payload
from cotenant.profiler.throughput import fit

GROUP: Final = "cotenant.computations"


def compute(kind: str, payload: Payload) -> ComputeResult:
    """Answer a request, in this process.

    Raises:
        ValueError: there is no such kind.
    """
    computation: Callable[[Payload], ComputeResult] | None = KINDS.get(kind)
    if computation is None:
        offered = plugins.find_entry_points(GROUP)
        if kind not in offered:
            raise ValueError(f"no computation of kind {kind!r}; there are {', '.join((*KINDS, *offered))}")
        computation = plugins.load(offered[kind])
    return computation(payload)


def answer(question: ComputeQuestion) -> ComputeResult:
    """The answer to a question, or the error that the computation raised."""
    try:
        return compute(question.kind, question.payload)
    except Exception as error:  # noqa: BLE001 - whatever a computation raises is its answer
        return ComputeResult(error=f"{type(error).__name__}: {error}")


def mean(payload: Payload) -> ComputeResult:
    """Computes the mean of a payload: `{"values": [...]}` -> their mean."""
    values = payload.get("values")
    if not isinstance(values, list) or not values:
        raise ValueError("`values` must be a list of numbers")
    return ComputeResult(values=(statistics.fmean(values),))


def throughput(payload: Payload) -> ComputeResult:
    """Fits a throughput model: `domain.fitting.question` -> `domain.fitting.numbers`.

    Raises:
        ValueError: the payload is no such question, or its points determine no model; the text says why.
        SciPyMissing: no SciPy here.
    """
    found = fit(steps_in(payload))
    if isinstance(found, Reason):
        raise ValueError(str(found))
    return ComputeResult(values=numbers(found))


KINDS: Final[dict[str, Callable[[Payload], ComputeResult]]] = {"mean": mean, "throughput-fit": throughput}
