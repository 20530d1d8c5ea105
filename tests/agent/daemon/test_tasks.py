"""Work beside the agent's loop: no mistake ends quietly or ends the agent, nothing is left when the agent
leaves, and every wait of an ended attempt has an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cotenant.agent.daemon.agent_log import log, log_error
from cotenant.agent.daemon.core.edge import AnyAgentEvent, AwaitMemory, MemoryFree, MemoryHeld
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.daemon.loop import BadState
from cotenant.agent.daemon.tasks import GpuRelease, LogReader, Tasks
from cotenant.agent.ipc.records import LOGS
from cotenant.controller.domain import AttemptNo, JobId
from cotenant.controller.wire import LogReply, ReadLog
from tests.agent.daemon.test_held_memory import GPU
from tests.agent.daemon.test_state import KEY
from tests.building.limits import within_s


async def mistake() -> None:
    raise ZeroDivisionError("5 apples " + "x" * 100_000)


async def damage() -> None:
    raise BadState("what is known may be wrong")


class Told:
    """What became of some work: what its loop's handler and who it was for were told."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.handler: list[dict[str, Any]] = []
        self.failed: list[str] = []
        asyncio.run(self._story(work))

    async def _story(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        heard = asyncio.Event()

        def hear(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            self.handler.append(context)
            heard.set()

        def fail(why: str) -> None:
            self.failed.append(why)
            heard.set()

        asyncio.get_running_loop().set_exception_handler(hear)
        tasks = Tasks("counting")
        tasks.keep(work(), fail)
        await heard.wait()
        assert len(tasks) == 0


def test_a_mistake_fails_what_it_was_about_and_the_agent_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    told = Told(mistake)
    assert told.handler == []
    (why,) = told.failed
    assert why.startswith("counting failed by an internal error of the agent: ZeroDivisionError")
    lines = capfd.readouterr().err.splitlines()
    assert "counting failed by an internal error" in lines[0] and any("in mistake" in line for line in lines)
    assert max(map(len, [why, *lines])) <= 2048 and len(lines) < 70


def test_damage_of_the_agents_own_state_is_told_to_the_loop() -> None:
    told = Told(damage)
    (context,) = told.handler
    assert (context["message"], told.failed) == ("counting failed", [])
    assert isinstance(context["exception"], BadState)


def test_work_that_is_kept_up_begins_again(capfd: pytest.CaptureFixture[str]) -> None:
    begun: list[int] = []

    async def story() -> None:
        again = asyncio.Event()

        async def work() -> None:
            begun.append(len(begun))
            if len(begun) == 3:
                again.set()
                await asyncio.Event().wait()
            raise RecursionError

        tasks = Tasks("looking around")
        tasks.keep_up(work, again_s=0.0)
        await again.wait()
        await tasks.leave()

    asyncio.run(story())
    assert begun == [0, 1, 2] and capfd.readouterr().err.count("looking around failed") == 2


@pytest.mark.parametrize("text", ["a" * 50_000, "\n" * 50_000, "\u2028\x1b]0;" * 9_000, "ü" * 3000])
def test_no_line_of_the_log_is_long(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    log(text)
    (line,) = capfd.readouterr().err.splitlines()
    assert len(line.encode()) <= 2048 and "agent: " in line


def test_a_deep_traceback_is_written_in_part(capfd: pytest.CaptureFixture[str]) -> None:
    def deep(left: int) -> None:
        if not left:
            raise ValueError("at the bottom")
        deep(left - 1)

    try:
        deep(500)
    except ValueError as error:
        log_error("digging", error)
    written = capfd.readouterr().err
    assert "at the bottom" in written and len(written.splitlines()) < 70


def test_a_log_that_cannot_be_read_is_answered_with_why(tmp_path: Path) -> None:
    (tmp_path / LOGS).write_text("in the way of the folder")
    answers: list[LogReply] = []
    reader = LogReader(lambda job, attempt: tmp_path, answers.append)
    reader.answer(ReadLog(request=1, job_id=JobId("7"), attempt=AttemptNo(1), rank=0, offset=0, limit=10))
    (answer,) = answers
    assert answer.closed and answer.missing.startswith("the log of job 7 cannot be read: NotADirectoryError")


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


def test_a_wait_that_fails_by_itself_is_answered() -> None:
    async def broken(log: list[str]) -> None:
        raise RuntimeError("no daemons")

    event, _ = answered(FAILED, daemons=broken)
    assert isinstance(event, MemoryHeld) and "no daemons" in event.holders["GPU-a"]
