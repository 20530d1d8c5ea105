"""Answers `ComputeRequest` commands inline: the simulator has no child process and nobody who waits.

Rule: every request is answered exactly once with `Computed`, as in production, by a result or by what went
wrong. What it took is reported apart and never changes the virtual clock: that is charged a fixed time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cotenant.controller.domain.commands import ComputeRequest
from cotenant.controller.domain.events import Computed
from cotenant.controller.wire.compute import Payload

Compute = Callable[[str, Payload], tuple[str, tuple[float, ...]]]
"""Kind and payload of a request -> the hash of the model that was used, and numbers; or it raises."""


def nothing(kind: str, payload: Payload) -> tuple[str, tuple[float, ...]]:
    """For runs that nobody handed anything that computes."""
    raise ValueError(f"this simulation was given nothing that computes {kind!r}")


def answer_inline(command: ComputeRequest, compute: Compute) -> tuple[Computed, float]:
    """The answer, and the processor seconds it took."""
    began_s = time.process_time()
    try:
        model_sha256, values = compute(command.kind, command.payload)
        error = ""
    except Exception as failure:  # noqa: BLE001 - whatever a computation raises is its answer
        model_sha256, values, error = "", (), f"{type(failure).__name__}: {failure}"
    answer = Computed(
        request_id=command.request_id,
        model_sha256=model_sha256,
        values=values,
        error=error,
        job_id=command.job_id,
    )
    return answer, time.process_time() - began_s
