"""Waiting for news of the GPUs that an attempt has left: the edge's side of `conditions.Waits`. Rule: the
answer comes after a probe of each of its devices that began when the attempt had gone, and so after all
errors that their watchers knew of then. The cause of an attempt's failure may be an error that is not
reported yet: it waits a moment longer, and for a round of the MPS daemons as well. Everything is bounded, and
nothing here blocks the agent's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from cotenant.agent.daemon.core import AnyAgentEvent, AwaitMemory, MemoryFree, MemoryHeld
from cotenant.agent.daemon.tasks import Tasks
from cotenant.agent.gpus import GpuWatch

NEWS_S: Final = 2.0
"""Between a failure and the probes that count: no document says whether the driver logs an error before the
process that it hits learns of it."""
DAEMONS_S: Final = 10.0
"""A wedged daemon delays a verdict by no more than this."""


class GpuRelease:
    """A task for each attempt that waits."""

    def __init__(
        self,
        post: Callable[[AnyAgentEvent], None],
        watch: GpuWatch | None,
        daemons: Callable[[], Awaitable[None]] | None = None,
        *,
        news_s: float = NEWS_S,
        daemons_s: float = DAEMONS_S,
    ) -> None:
        """`daemons()`: returns when every MPS daemon was looked at anew, and what was seen is posted."""
        self._post = post
        self._watch = watch
        self._daemons = daemons
        self._news_s, self._daemons_s = news_s, daemons_s
        self._tasks = Tasks("waiting for a device's memory")

    def wait(self, asked: AwaitMemory) -> None:
        """Answers `MemoryFree` or `MemoryHeld`."""
        self._tasks.keep(self._wait(asked))

    async def _wait(self, asked: AwaitMemory) -> None:
        job_id, attempt = asked.job_id, asked.attempt
        if asked.failed:
            await asyncio.sleep(self._news_s)
            if self._daemons is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._daemons(), self._daemons_s)
        held: dict[str, str] = {}
        if self._watch is not None:
            held = await self._watch.given_back((job_id, attempt), [device.local for device in asked.devices])
        if held:
            self._post(MemoryHeld(job_id=job_id, attempt=attempt, holders=held))
        else:
            self._post(MemoryFree(job_id=job_id, attempt=attempt))

    async def leave(self) -> None:
        """Stop waiting: the next start of the agent asks again."""
        await self._tasks.leave()
