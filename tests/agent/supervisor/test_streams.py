"""What a supervisor answers about its attempt's terminal, and when."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from cotenant.agent.supervisor.processes.terminal import Terminal
from cotenant.agent.supervisor.streams import LOST_S, REPLACED, Streams
from cotenant.controller.domain import Launch
from cotenant.controller.wire import (
    SIZE_VARIABLE,
    WINDOW_BYTES,
    AskStream,
    StreamAsk,
    StreamReply,
    StreamTold,
)
from tests.building.orders import order_of

LAUNCH = Launch(argv=("sh",), terminal=True, uid=os.getuid(), gid=os.getgid(), env={SIZE_VARIABLE: "30x90"})
ORDER = order_of(1, launch=LAUNCH)


def named(number: int, ask: StreamAsk, job_epoch: str = ORDER.start.job_epoch) -> AskStream:
    return AskStream(request=number, job_id=ORDER.job_id, attempt=ORDER.attempt, ask=ask, job_epoch=job_epoch)


class Asking:
    """The agent's side."""

    def __init__(self) -> None:
        self.has_room = True
        self.told: dict[int, StreamTold] = {}
        self.terminal = Terminal(ORDER)
        self.streams = Streams(ORDER, selectors.DefaultSelector(), self._hear, lambda: self.has_room)
        self.streams.serve(self.terminal, 0.0)
        self._numbers = count(1)

    def _hear(self, word: StreamReply) -> None:
        assert word.request not in self.told, "one answer for each question"
        self.told[word.request] = word.told

    def ask(self, now_s: float = 0.0, session: str = "a", **fields: Any) -> int:
        number = next(self._numbers)
        ask = StreamAsk(session=session, **{"wait_s": 5.0, **fields})
        self.streams.ask(named(number, ask), now_s)
        self.streams.work(now_s)
        return number

    def reads(self) -> bool:
        """Whether output is read now."""
        return self.terminal.is_readable

    def print(self, data: bytes) -> None:
        """As the job does, and as its output is read."""
        os.write(self.terminal.rank_end, data)
        self.terminal.read(final=False)


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.terminal.close()


def test_it_begins_with_the_size_that_its_client_had(asking: Asking) -> None:
    assert os.get_terminal_size(asking.terminal.rank_end) == (90, 30)
    asking.ask(rows=40, columns=100)
    assert os.get_terminal_size(asking.terminal.rank_end) == (100, 40)


def test_an_answer_waits_for_output_or_for_its_time(asking: Asking) -> None:
    first = asking.ask(limit=100)
    assert asking.told == {} and asking.streams.next_alarm_s == 5.0
    asking.print(b"hello")
    asking.streams.work(1.0)
    assert asking.told[first].data == b"hello"
    second = asking.ask(2.0, limit=100, seen=5)
    asking.streams.work(7.0)
    assert asking.told[second] == StreamTold(offset=5)


def test_input_is_taken_once(asking: Asking) -> None:
    for _ in range(2):
        assert asking.told[asking.ask(data=b"one\n")].taken == 4
    assert asking.told[asking.ask(offset=9, data=b"later")].taken == 4
    asking.ask(offset=4, data=b"two\n")
    assert os.read(asking.terminal.rank_end, 100) == b"one\n"
    assert os.read(asking.terminal.rank_end, 100) == b"two\n"


def test_the_newest_client_has_it_and_the_others_are_told(asking: Asking) -> None:
    before = asking.ask(limit=100)
    asking.print(b"shared")
    after = asking.ask(session="b", limit=100)
    assert asking.told[before] == REPLACED
    assert asking.told[after].data == b"shared"
    assert asking.told[asking.ask(session="a", data=b"x")].state == "replaced"
    assert asking.told[asking.ask(session="b", data=b"ls\n")].taken == 3, "numbered anew"


def test_output_waits_for_the_first_client(asking: Asking) -> None:
    asking.print(b"x" * 1000)
    asking.terminal.stream.sent.put(b"y" * (WINDOW_BYTES - 1000))
    assert not asking.reads()
    assert len(asking.told[asking.ask(limit=WINDOW_BYTES)].data) == WINDOW_BYTES
    asking.ask(limit=100, seen=WINDOW_BYTES)
    assert asking.reads()


def test_output_waits_for_a_client_until_it_leaves_or_is_lost(asking: Asking) -> None:
    asking.ask(limit=100)
    asking.terminal.stream.sent.put(b"x" * WINDOW_BYTES)
    assert not asking.reads()
    asking.streams.work(LOST_S - 1.0)
    assert not asking.reads()
    assert asking.streams.next_alarm_s == LOST_S
    asking.streams.work(LOST_S)
    assert asking.reads(), "a client that says nothing is gone"
    asking.ask(LOST_S, limit=100)
    assert not asking.reads()
    left = asking.ask(LOST_S, ends=True)
    assert asking.reads()
    assert left in asking.told


def test_nothing_is_said_to_an_agent_that_does_not_read(asking: Asking) -> None:
    asking.has_room = False
    number = asking.ask(limit=100)
    asking.print(b"word")
    asking.streams.work(1.0)
    assert asking.told == {}
    asking.has_room = True
    asking.streams.work(2.0)
    assert asking.told[number].data == b"word"
    asking.has_room = False
    asking.ask(2.0, limit=100)
    asking.streams.work(10.0)
    asking.has_room = True
    asking.streams.work(11.0)
    assert len(asking.told) == 1, "that question is too old to be answered"


def test_the_end_is_told_to_whoever_waits(asking: Asking) -> None:
    asking.print(b"last")
    number = asking.ask(limit=100, seen=4)
    asking.terminal.close()
    asking.streams.end()
    assert asking.told[number].state == "ended"
    assert asking.told[asking.ask(session="p", port=1)].state == "refused"


def test_what_is_there_when_a_client_comes_is_kept_until_it_asks(asking: Asking) -> None:
    """Its window's size may come before its first question for output."""
    asking.terminal.stream.sent.put(b"x" * WINDOW_BYTES)
    asking.streams.work(LOST_S)
    assert asking.reads()
    asking.ask(LOST_S, session="b", rows=24, columns=80)
    assert not asking.reads()


def test_another_job_of_this_number_is_not_answered_for(asking: Asking) -> None:
    asking.streams.ask(named(1, StreamAsk(session="a", data=b"x"), job_epoch="lost"), 0.0)
    assert asking.told[1].state == "away"
