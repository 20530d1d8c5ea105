"""Work beside the agent's loop: no mistake ends quietly, nothing is left when the agent leaves, and every
wait of an ended attempt has an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from cotenant.agent.daemon.core.edge import AnyAgentEvent, AwaitMemory, MemoryFree, MemoryHeld
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.daemon.tasks import GpuRelease, Tasks
from cotenant.controller.domain import AttemptNo, JobId
from tests.agent.daemon.test_held_memory import GPU
from tests.agent.daemon.test_state import KEY
from tests.building.limits import within_s


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


# --- GPUs that an attempt has left -----------------------------------------------------------------


ENDED = AwaitMemory(**KEY, devices=(GPU,))
FAILED = AwaitMemory(**KEY, devices=(GPU,), failed=True)


class Watch:
    """In the place of the watcher of the GPUs."""

    def __init__(self, log: list[str], held: dict[str, str]) -> None:
        self._log, self._held = log, held

    async def given_back(self, key: AttemptKey, uuids: Collection[str]) -> dict[str, str]:
        assert (key, list(uuids)) == ((JobId("7"), AttemptNo(1)), ["GPU-a"])
        self._log.append("looked at the device")
        return self._held


def answered(
    asked: AwaitMemory,
    *,
    held: dict[str, str] | None = None,
    daemons: Callable[[list[str]], Awaitable[None]] | None = None,
    watched: bool = True,
) -> tuple[AnyAgentEvent, list[str]]:
    log: list[str] = []

    async def story() -> AnyAgentEvent:
        posted: asyncio.Queue[AnyAgentEvent] = asyncio.Queue()
        watch: Any = Watch(log, held or {}) if watched else None
        round_ = None if daemons is None else lambda: daemons(log)
        release = GpuRelease(posted.put_nowait, watch, round_, news_s=0.0, daemons_s=0.05)
        release.wait(asked)
        async with asyncio.timeout(within_s(30.0)):
            event = await posted.get()
        await release.leave()
        return event

    return asyncio.run(story()), log


async def quick(log: list[str]) -> None:
    log.append("looked at the daemons")


async def wedged(log: list[str]) -> None:
    log.append("asked the daemons")
    await asyncio.Event().wait()


def test_a_good_end_asks_its_devices_alone() -> None:
    assert answered(ENDED, daemons=quick) == (MemoryFree(**KEY), ["looked at the device"])


def test_a_failure_hears_its_daemons_before_the_look_that_counts() -> None:
    said = ["looked at the daemons", "looked at the device"]
    assert answered(FAILED, daemons=quick) == (MemoryFree(**KEY), said)
    assert answered(FAILED) == (MemoryFree(**KEY), ["looked at the device"])


def test_a_daemon_that_is_wedged_keeps_nobody_for_ever() -> None:
    said = ["asked the daemons", "looked at the device"]
    assert answered(FAILED, daemons=wedged) == (MemoryFree(**KEY), said)


def test_memory_that_is_held_is_said_with_its_holder() -> None:
    event, _ = answered(ENDED, held={"GPU-a": "a zombie"})
    assert event == MemoryHeld(**KEY, holders={"GPU-a": "a zombie"})


def test_where_nobody_watches_nobody_waits() -> None:
    assert answered(ENDED, watched=False) == (MemoryFree(**KEY), [])
