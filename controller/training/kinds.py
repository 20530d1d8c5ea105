"""Which slow computations there are: the kind of a `Compute` action -> the function that answers it.

A function gets the request's payload and returns the hash of the model it used (empty for none) and
numbers. It may import what it likes: it runs in a child process. Same payload, same model, same numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from cotenant.controller.wire.compute import Payload

Answer = tuple[str, tuple[float, ...]]

KINDS: Final[dict[str, str]] = {
    "deferral-fit": "cotenant.controller.training.deferral:answer",
    "mean": "cotenant.controller.training.mean:answer",
    "throughput-fit": "cotenant.controller.training.throughput:answer",
}


def compute(kind: str, payload: Payload) -> Answer:
    """Answer a request, in this process.

    Raises:
        ValueError: there is no such kind.
    """
    place = KINDS.get(kind)
    if place is None:
        raise ValueError(f"no computation of kind {kind!r}; there are {', '.join(KINDS)}")
    module, _, name = place.partition(":")
    answer: Callable[[Payload], Answer] = getattr(importlib.import_module(module), name)
    return answer(payload)
