"""Finds out when jobs end, in a child process and in the background, again and again while something changes.

Rule: one question at a time, about the newest state; what changed meanwhile is asked about next. After an
answer it rests, so that roll-outs take no more than their share of one core. A child that fails or dies
leaves the answer before it in force, and is asked again at the next change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cotenant.controller.engine import EtaAnswer, EtaQuestion
from cotenant.controller.system.child import ChildProcess
from cotenant.controller.wire import BadMessage, unpack_struct

TIMEOUT_S: Final = 600.0
REST_S_MIN: Final = 0.5
REST_S_FAILED: Final = 30.0

log = logging.getLogger("cotenant.controller")


FORESEE_S: Final = 20.0
"""For all questions of one request together."""


class ForesightWorker:
    """Answers questions about jobs that are not there, one request at a time, in a child of its own."""

    def __init__(self, share: float, within_s: float = FORESEE_S) -> None:
        """`share`: of one core, as for `EtaWorker`; 0: never."""
        self._share, self._within_s = share, within_s
        self._work: asyncio.Task[None] | None = None

    def ask(self, questions: Sequence[EtaQuestion], then: Callable[[Sequence[EtaAnswer]], None]) -> bool:
        """False: it has something to do, or is turned off."""
        if self._share <= 0.0 or (self._work is not None and not self._work.done()):
            return False
        self._work = asyncio.get_running_loop().create_task(self._answer(questions, then))
        return True

    async def _answer(
        self, questions: Sequence[EtaQuestion], then: Callable[[Sequence[EtaAnswer]], None]
    ) -> None:
        child, answers = ChildProcess("cotenant.controller.sim.eta"), list[EtaAnswer]()
        try:
            async with asyncio.timeout(self._within_s):
                for question in questions:
                    data = await child.ask(msgspec.msgpack.encode(question))
                    answers.append(unpack_struct(data, EtaAnswer))
        except TimeoutError:
            pass  # What is there is told.
        except (OSError, EOFError, BadMessage) as error:
            log.warning("the process that rolls out died (%s)", type(error).__name__)
        finally:
            await child.end()
        then(answers)

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)


class EtaWorker:
    """Started by the first `changed`."""

    def __init__(
        self, ask: Callable[[], EtaQuestion | None], told: Callable[[EtaAnswer], None], share: float
    ) -> None:
        """`ask`: the question as of now; None: there is nothing to ask. `share`: of one core; 0: never."""
        self._ask, self._told, self._share = ask, told, share
        self._child = ChildProcess("cotenant.controller.sim.eta")
        self._is_stale = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """What was found out last may be out of date."""
        self._is_stale.set()
        if self._worker is None and self._share > 0.0:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while True:
            await self._is_stale.wait()
            self._is_stale.clear()
            question = self._ask()
            if question is None:
                continue
            answer = await self._answered(question)
            if answer.error:
                log.warning("when jobs end is not known: %s", answer.error)
                rest_s = REST_S_FAILED
            else:
                self._told(answer)
                rest_s = max(REST_S_MIN, answer.cpu_s * (1.0 / self._share - 1.0))
            await asyncio.sleep(rest_s)

    async def _answered(self, question: EtaQuestion) -> EtaAnswer:
        data = msgspec.msgpack.encode(question)
        try:
            answer = await asyncio.wait_for(self._child.ask(data), TIMEOUT_S)
            return unpack_struct(answer, EtaAnswer)
        except TimeoutError:
            why = f"no answer within {TIMEOUT_S:g} s"
        except (OSError, EOFError, BadMessage) as error:
            why = f"the process that rolls out died ({type(error).__name__})"
        await self._child.end()
        return EtaAnswer(error=why)

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._child.end()
