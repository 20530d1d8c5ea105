"""Runs `Think` commands in one child process, so that the controller never waits for a computation.

Rule: every request is answered exactly once with `Computed`, by a result or by what went wrong. The child
is a fresh interpreter: it shares no lock, no socket and no journal with us.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from cotenant.controller.domain.commands import Think
from cotenant.controller.domain.events import Computed
from cotenant.controller.tuning.kinds import Answer, compute

WAITING_MAX: Final = 100
TIMEOUT_S: Final = 1800.0


class Thinking:
    """At most one computation at a time; the others queue."""

    def __init__(self, done: Callable[[Computed], None]) -> None:
        self._done = done
        self._pool: ProcessPoolExecutor | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, think: Think) -> None:
        """Answered later; a request that is being worked on is not started twice."""
        if think.request_id in self._tasks:
            return
        if len(self._tasks) >= WAITING_MAX:
            self._done(failed(think, f"more than {WAITING_MAX} computations are waiting"))
            return
        self._tasks[think.request_id] = asyncio.get_running_loop().create_task(self._think(think))

    async def _think(self, think: Think) -> None:
        try:
            answer = await asyncio.wait_for(self._in_child(think), TIMEOUT_S)
            result = Computed(request_id=think.request_id, model_sha256=answer[0], values=answer[1])
        except TimeoutError:
            self._end_pool()
            result = failed(think, f"no answer within {TIMEOUT_S:g} s")
        except BrokenProcessPool:
            self._end_pool()
            result = failed(think, "the process that computed it died")
        except Exception as error:  # noqa: BLE001 - whatever a computation raises is its answer
            result = failed(think, f"{type(error).__name__}: {error}")
        del self._tasks[think.request_id]
        self._done(result)

    async def _in_child(self, think: Think) -> Answer:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=spawn)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, compute, think.kind, think.payload)

    def _end_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        children = list((pool._processes or {}).values())  # It offers no way to end a busy child.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.kill()

    async def close(self) -> None:
        """End the child, busy or not: its request is asked again after the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end_pool()


def failed(think: Think, why: str) -> Computed:
    return Computed(request_id=think.request_id, model_sha256="", values=(), error=why)
