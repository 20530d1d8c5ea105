"""Slow computations run in a child process and are answered exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cotenant.controller.domain import CommandId, ComputeRequest
from cotenant.controller.domain import events as ev
from cotenant.controller.store import Clock
from cotenant.controller.training import compute
from cotenant.controller.workers import ComputeWorker


def think(request_id: int, kind: str = "mean", **payload: Any) -> ComputeRequest:
    return ComputeRequest(command_id=CommandId(request_id), request_id=request_id, kind=kind, payload=payload)


class Answers:
    """What came back, in order."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[ev.Computed] = asyncio.Queue()
        self.thinking = ComputeWorker(self.queue.put_nowait)

    async def take(self, count: int) -> dict[int, ev.Computed]:
        answers = [await self.queue.get() for _ in range(count)]
        return {answer.request_id: answer for answer in answers}


def test_every_request_is_answered_once_whatever_it_asks() -> None:
    async def main() -> None:
        answers = Answers()
        for each in (
            think(1, values=[1.0, 2.0, 6.0]),
            think(1, values=[1.0, 2.0, 6.0]),
            think(2, kind="astrology"),
            think(3, values="none"),
            think(4, values=[5.0]),
        ):
            answers.thinking.start(each)
        by_request = await answers.take(4)
        await answers.thinking.close()
        assert by_request[1].values == (3.0,) and by_request[1].error == ""
        assert "no computation of kind 'astrology'" in by_request[2].error
        assert "must be a list of numbers" in by_request[3].error
        assert by_request[4].values == (5.0,)
        assert answers.queue.empty()

    asyncio.run(main())


def test_a_child_that_dies_is_an_answer_and_the_next_one_works() -> None:
    async def main() -> None:
        answers = Answers()
        answers.thinking.start(think(1, values=[1.0]))
        await answers.take(1)
        child = answers.thinking._child.process
        assert child is not None
        child.kill()
        await child.wait()
        answers.thinking.start(think(2, values=[1.0]))
        answers.thinking.start(think(3, values=[4.0]))
        by_request = await answers.take(2)
        await answers.thinking.close()
        assert "the process that computed it died" in by_request[2].error
        assert by_request[3].values == (4.0,)

    asyncio.run(main())


def test_an_unknown_kind_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"there are .*mean"):
        compute("astrology", {})


def test_time_never_goes_back_and_starts_where_the_journal_says() -> None:
    monotonic = [100.0]
    clock = Clock(50.0, monotonic=lambda: monotonic[0], wall=lambda: -1e9)
    assert clock.now_s() == 50.0
    monotonic[0] = 103.0
    assert clock.now_s() == 53.0
    monotonic[0] = 90.0
    assert clock.now_s() == 53.0, "even a broken monotonic clock does not turn time back"
