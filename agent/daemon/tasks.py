"""Work that goes on beside the loop until it is done, or until the agent leaves.

Rule: a task that is not awaited is kept here, else it may be collected half done, and its exception be lost.
An exception goes to the loop's handler, which ends the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    def __init__(self, doing: str) -> None:
        """`doing`: what fails if one of them does, for the log."""
        self._doing = doing
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": f"{self._doing} failed", "exception": error}
            task.get_loop().call_exception_handler(context)

    def __len__(self) -> int:
        return len(self._tasks)

    def cancel(self) -> None:
        """For callers that cannot wait: the loop finishes it."""
        for task in list(self._tasks):
            task.cancel()

    async def leave(self) -> None:
        """Stop all of them, and wait until they have."""
        tasks = list(self._tasks)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
