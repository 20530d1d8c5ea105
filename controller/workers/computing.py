"""Computes in a child process what a policy or a profile asks for.

Rule: every compute request gets exactly one `Computed`, with a result or with what went wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cotenant.controller import wire
from cotenant.controller.domain import ComputeRequest
from cotenant.controller.domain import events as ev
from cotenant.controller.system.child import ChildProcess

COMPUTE_WAITING_MAX: Final = 100
COMPUTE_TIMEOUT_S: Final = 1800.0


class ComputeWorker:
    """A worker that does one computation at a time; the other requests queue."""

    def __init__(self, done: Callable[[ev.Computed], None]) -> None:
        self._done = done
        self._child = ChildProcess("cotenant.controller.training")
        self._waiting: dict[int, ComputeRequest] = {}
        self._worker: asyncio.Task[None] | None = None

    def start(self, request: ComputeRequest) -> None:
        """Take a request and answer it later; one that waits or is being computed is not started twice."""
        if request.request_id in self._waiting:
            return
        if len(self._waiting) >= COMPUTE_WAITING_MAX:
            self._done(failure_answer(request, f"more than {COMPUTE_WAITING_MAX} computations are waiting"))
            return
        self._waiting[request.request_id] = request
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            request = next(iter(self._waiting.values()))
            answer = await self._compute(request)
            del self._waiting[request.request_id]
            self._done(answer)

    async def _compute(self, request: ComputeRequest) -> ev.Computed:
        try:
            result = await asyncio.wait_for(self._ask_child(request), COMPUTE_TIMEOUT_S)
        except TimeoutError:
            await self._child.end()
            return failure_answer(request, f"no answer within {COMPUTE_TIMEOUT_S:g} s")
        except (OSError, EOFError, wire.BadMessage) as error:
            await self._child.end()
            return failure_answer(request, f"the process that computed it died ({type(error).__name__})")
        return ev.Computed(
            request_id=request.request_id,
            model_sha256=result.model_sha256,
            values=result.values,
            error=result.error,
            job_id=request.job_id,
            document=result.document or None,
        )

    async def _ask_child(self, request: ComputeRequest) -> wire.ComputeResult:
        question = wire.pack(wire.ComputeQuestion(kind=request.kind, payload=request.payload))
        result: wire.ComputeResult = wire.unpack(await self._child.ask(question), wire.ComputeResult)
        return result

    async def close(self) -> None:
        """End the child, busy or not: the controller repeats its request after the next start."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._child.end()


def failure_answer(request: ComputeRequest, why: str) -> ev.Computed:
    return ev.Computed(
        request_id=request.request_id, model_sha256="", values=(), error=why, job_id=request.job_id
    )
