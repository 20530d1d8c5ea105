"""Finds out in child processes when jobs end, and when jobs that are not submitted would.

Rule: when jobs end is found out again when something has changed, or when a job goes on after the end that it
had in half of the futures. One question at a time, about the newest state; the next question covers what
changed meanwhile. After an answer the worker rests, so that roll-outs take no more than their share of one
core. Once most of the jobs that were asked about have ended, the next question is cheap: it waits neither for
the answer nor for the rest. When a child fails or dies the last answer stays in force, and the next change
asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from cotenant.controller import wire
from cotenant.controller.history import EtaAnswer, EtaQuestion
from cotenant.controller.system.child import ChildProcess

ETA_TIMEOUT_S: Final = 600.0
ETA_REST_S_MIN: Final = 0.5
ETA_REST_S_FAILED: Final = 30.0
ETA_LASTS_S_MIN: Final = 10.0
"""An answer is in force for so long at least, where nothing changes."""
ETA_JOBS_MANY: Final = 100
"""A question about fewer jobs is answered soon, however many of them have ended meanwhile."""
FORESIGHT_REQUESTS_MAX: Final = 16
"""Requests of all users together that wait or are being answered."""

OnEtaAnswers = Callable[[Sequence[EtaAnswer]], None]

log = logging.getLogger("cotenant.controller")


class EtaWorker:
    """Started by the first `changed`."""

    def __init__(
        self,
        ask: Callable[[], EtaQuestion | None],
        told: Callable[[EtaAnswer], None],
        open_jobs: Callable[[], int],
        share: float,
        lasts_s_min: float = ETA_LASTS_S_MIN,
    ) -> None:
        """Prepares the worker for questions. `ask`: the question as of now; None: there is nothing to ask.
        `open_jobs`: how many jobs a question would be about now. `share`: of one core; 0: never."""
        self._ask, self._told, self._open_jobs = ask, told, open_jobs
        self._share, self._lasts_s_min = share, lasts_s_min
        self._child = ChildProcess("cotenant.controller.sim.eta")
        self._is_stale = asyncio.Event()
        self._has_changed = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def look_again(self) -> None:
        """Called when the newest answer may be out of date."""
        self._is_stale.set()
        self._has_changed.set()
        if self._worker is None and self._share > 0.0:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        lasts_s: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(lasts_s):
                    await self._is_stale.wait()
            self._is_stale.clear()
            question, lasts_s = self._ask(), None
            if question is None:
                continue
            answer = await self._answer(question)
            if answer is None:
                continue
            if answer.error:
                log.warning("when jobs end is not known: %s", answer.error)
                rest_s = ETA_REST_S_FAILED
            else:
                self._told(answer)
                lasts_s = self._lasts_s(answer)
                rest_s = max(ETA_REST_S_MIN, answer.cpu_s * (1.0 / self._share - 1.0))
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._most_have_ended(len(question.claims))

    async def _most_have_ended(self, asked: int) -> None:
        """Until most of so many jobs have ended; of few jobs it never returns."""
        while asked < ETA_JOBS_MANY or self._open_jobs() * 2 > asked:
            self._has_changed.clear()
            await self._has_changed.wait()

    def _lasts_s(self, answer: EtaAnswer) -> float | None:
        """The next median end: a job that goes on after it calls for new roll-outs."""
        medians_s = [eta.finish.told.p50_s for eta in answer.etas if eta.finish is not None]
        return max(self._lasts_s_min, min(medians_s)) if medians_s else None

    async def _answer(self, question: EtaQuestion) -> EtaAnswer | None:
        """Returns the answer to the question; None: the question was given up, because most of the jobs that
        it was about have ended."""
        answered = asyncio.create_task(_ask_child(self._child, question))
        outdated = asyncio.create_task(self._most_have_ended(len(question.claims)))
        try:
            await asyncio.wait((answered, outdated), return_when=asyncio.FIRST_COMPLETED)
        finally:
            given_up = not answered.done()
            answered.cancel()
            outdated.cancel()
            await asyncio.gather(answered, outdated, return_exceptions=True)
        if given_up:
            await self._child.end()
            return None
        return answered.result()

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._child.end()


class ForesightWorker:
    """Answers what users ask about jobs that are not submitted, one request after the other, in its own child
    process, which ends with the last request, because such requests are rare."""

    def __init__(self, share: float) -> None:
        """Prepares the worker for roll-outs. `share`: of one core, as for `EtaWorker`; 0: never."""
        self._share = share
        self._child = ChildProcess("cotenant.controller.sim.eta")
        self._waiting: list[tuple[Sequence[EtaQuestion], OnEtaAnswers, float]] = []
        self._worker: asyncio.Task[None] | None = None

    def ask(self, questions: Sequence[EtaQuestion], told: OnEtaAnswers, within_s: float) -> bool:
        """Takes questions, to answer them later. False: too many requests wait already, or foresight is
        turned off. `told` gets the answers that were found in time, in the order of the questions."""
        if self._share <= 0.0 or len(self._waiting) >= FORESIGHT_REQUESTS_MAX:
            return False
        self._waiting.append((questions, told, within_s))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())
        return True

    async def _work(self) -> None:
        while self._waiting:
            questions, told, within_s = self._waiting[0]
            answers: list[EtaAnswer] = []
            try:
                async with asyncio.timeout(within_s):
                    for question in questions:
                        answers.append(await _ask_child(self._child, question))
            except TimeoutError:
                await self._child.end()
            self._waiting.pop(0)
            told(answers)
        await self._child.end()

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._child.end()


async def _ask_child(child: ChildProcess, question: EtaQuestion) -> EtaAnswer:
    data = msgspec.msgpack.encode(question)
    try:
        answer = await asyncio.wait_for(child.ask(data), ETA_TIMEOUT_S)
        return wire.unpack_struct(answer, EtaAnswer)
    except TimeoutError:
        why = f"no answer within {ETA_TIMEOUT_S:g} s"
    except (OSError, EOFError, wire.BadMessage) as error:
        why = f"the process that rolls out died ({type(error).__name__})"
    await child.end()
    return EtaAnswer(error=why)
