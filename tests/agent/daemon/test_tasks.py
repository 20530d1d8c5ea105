"""Work beside the agent's loop: no mistake ends quietly, and nothing is left when the agent leaves."""

from __future__ import annotations

import asyncio
from typing import Any

from cotenant.agent.daemon.tasks import Tasks


async def mistake() -> None:
    raise ZeroDivisionError


def test_a_mistake_is_told_to_the_loop_with_what_failed() -> None:
    told: list[dict[str, Any]] = []

    async def story() -> None:
        heard = asyncio.Event()

        def hear(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            told.append(context)
            heard.set()

        asyncio.get_running_loop().set_exception_handler(hear)
        tasks = Tasks("counting")
        tasks.keep(mistake())
        await heard.wait()
        assert len(tasks) == 0

    asyncio.run(story())
    (context,) = told
    assert context["message"] == "counting failed"
    assert isinstance(context["exception"], ZeroDivisionError)


def test_leaving_stops_what_goes_on_and_waits_for_it() -> None:
    async def story() -> list[str]:
        said: list[str] = []
        started = asyncio.Event()

        async def for_ever() -> None:
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                said.append("cleaned up")

        tasks = Tasks("waiting")
        tasks.keep(for_ever())
        await started.wait()
        assert len(tasks) == 1
        await tasks.leave()
        assert len(tasks) == 0
        return said

    assert asyncio.run(story()) == ["cleaned up"]
