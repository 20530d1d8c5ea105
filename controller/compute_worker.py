"""Runs `Think` commands in one child process, so that the controller never waits for a computation.

Rule: every request is answered exactly once with `Computed`, by a result or by what went wrong. The child
is a fresh interpreter: it shares no lock, no socket and no journal with us.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

from cotenant.controller.domain.commands import Think
from cotenant.controller.domain.events import Computed
from cotenant.controller.wire.codec import BadMessage, pack, unpack
from cotenant.controller.wire.compute import LENGTH, Question, Result

WAITING_MAX: Final = 100
TIMEOUT_S: Final = 1800.0


class Thinking:
    """One computation at a time; the others queue."""

    def __init__(self, done: Callable[[Computed], None]) -> None:
        self._done = done
        self._child: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, Think] = {}
        self._worker: asyncio.Task[None] | None = None

    def start(self, think: Think) -> None:
        """Answered later; a request that waits or is worked on is not started twice."""
        if think.request_id in self._waiting:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._done(failed(think, f"more than {WAITING_MAX} computations are waiting"))
            return
        self._waiting[think.request_id] = think
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            think = next(iter(self._waiting.values()))
            answer = await self._think(think)
            del self._waiting[think.request_id]
            self._done(answer)

    async def _think(self, think: Think) -> Computed:
        try:
            result = await asyncio.wait_for(self._ask_child(think), TIMEOUT_S)
        except TimeoutError:
            await self._end_child()
            return failed(think, f"no answer within {TIMEOUT_S:g} s")
        except (OSError, EOFError, BadMessage) as error:
            await self._end_child()
            return failed(think, f"the process that computed it died ({type(error).__name__})")
        return Computed(
            request_id=think.request_id,
            model_sha256=result.model_sha256,
            values=result.values,
            error=result.error,
            job_id=think.job_id,
        )

    async def _ask_child(self, think: Think) -> Result:
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "cotenant.controller.training",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        question = pack(Question(kind=think.kind, payload=think.payload))
        child.stdin.write(len(question).to_bytes(LENGTH, "big") + question)
        await child.stdin.drain()
        size = int.from_bytes(await child.stdout.readexactly(LENGTH), "big")
        result: Result = unpack(await child.stdout.readexactly(size), Result)
        return result

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.returncode is None:
                child.kill()
            await child.wait()

    async def close(self) -> None:
        """End the child, busy or not: what it was asked is asked again after the next start."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._end_child()


def failed(think: Think, why: str) -> Computed:
    return Computed(request_id=think.request_id, model_sha256="", values=(), error=why, job_id=think.job_id)
