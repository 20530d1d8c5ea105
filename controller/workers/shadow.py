"""Follows the journal in a child process under the shadow policy.

Rule: the shadow policy takes at most its share of one core, however much it has to catch up with, and only
its report comes back. A child that dies begins again at the beginning of the shadow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cotenant.controller import wire
from cotenant.controller.system.child import ChildProcess

log = logging.getLogger("cotenant.controller")

SHADOW_TIMEOUT_S: Final = 1800.0
SHADOW_SHARE: Final = 0.1
"""Of one core."""
SHADOW_REST_S_MIN: Final = 1.0
SHADOW_REST_S_FAILED: Final = 60.0


class ShadowWorker:
    """Started by the first `changed`."""

    def __init__(
        self,
        ask: Callable[[], wire.ShadowQuestion | None],
        told: Callable[[wire.ShadowQuestion, wire.ShadowAnswer], None],
        *,
        share: float = SHADOW_SHARE,
        rest_s_min: float = SHADOW_REST_S_MIN,
    ) -> None:
        """Prepares the worker for questions. `ask`: the question as of now; None: there is no shadow."""
        self._ask, self._told, self._share, self._rest_s_min = ask, told, share, rest_s_min
        self._child = ChildProcess("cotenant.controller.sim.past")
        self._is_stale = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def look_again(self) -> None:
        """Called when the journal may have grown or the shadow has changed."""
        self._is_stale.set()
        if self._worker is None and self._ask() is not None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while True:
            await self._is_stale.wait()
            await asyncio.sleep(self._rest_s_min)  # What has just happened is on its way to the disk.
            self._is_stale.clear()
            question = self._ask()
            if question is None:
                await self._child.end()
                continue
            answer = await self._answer(question)
            if answer.error:
                log.warning("the shadow of %s is not followed: %s", question.policy, answer.error)
            self._told(question, answer)
            if not answer.is_caught_up and not answer.error:
                self._is_stale.set()
            rest_s = answer.cpu_s * (1.0 / self._share - 1.0)
            await asyncio.sleep(SHADOW_REST_S_FAILED if answer.error else rest_s)

    async def _answer(self, question: wire.ShadowQuestion) -> wire.ShadowAnswer:
        try:
            data = await asyncio.wait_for(self._child.ask(msgspec.msgpack.encode(question)), SHADOW_TIMEOUT_S)
            return wire.unpack_struct(data, wire.ShadowAnswer)
        except TimeoutError:
            why = f"no answer within {SHADOW_TIMEOUT_S:g} s"
        except (OSError, EOFError, wire.BadMessage) as error:
            why = f"the process that follows died ({type(error).__name__})"
        await self._child.end()
        return wire.ShadowAnswer(error=why)

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._child.end()
