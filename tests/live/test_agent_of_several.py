"""A real agent with several controllers: it finds the one that leads, and its successor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cotenant.controller.domain import Epoch
from cotenant.controller.system.keys import add_agent, init_cluster, read_key
from cotenant.controller.wire import FromAgent, Heartbeat, Hello, NotLeading, Renew, Welcome, decode
from tests.live.test_agent import PATIENCE_S, Agents, Controller


class OneOfTwo(Controller):
    """A controller that leads in an epoch, or says who does."""

    epoch = Epoch()
    leader: str | None = None
    """None: it leads."""

    def _take(self, address: bytes, message: FromAgent) -> None:
        if isinstance(message, Hello):
            self._hosts[address] = message.report.host_id
            self.hellos.append(message)
        if self.leader is not None:
            self.say("h1", NotLeading(leader=self.leader))
        elif isinstance(message, Hello):
            welcome = Welcome(
                session=message.session, lease_s=60.0, reports_seen=0, journal="test", epoch=self.epoch
            )
            self.say("h1", welcome)
        elif isinstance(message, Heartbeat):
            self.beats.append(message)
            self.say("h1", Renew(beat=message.beat))

    def leads(self, number: int) -> None:
        self.leader, self.epoch = None, Epoch(number=number, token=f"e{number}")

    def work(self) -> None:
        """Takes one message, if there is one."""
        if self._socket.poll(10):
            address, frame = self._socket.recv_multipart()
            self._take(address, decode(frame, FromAgent))


def until_it_works_for(leader: OneOfTwo, *others: OneOfTwo) -> None:
    """Works as all of these controllers until the agent sends its heartbeats to this one."""
    leader.beats.clear()
    deadline_s = time.monotonic() + PATIENCE_S
    while len(leader.beats) < 2:
        assert time.monotonic() < deadline_s
        for each in (leader, *others):
            each.work()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[OneOfTwo, OneOfTwo]]:
    """Two controllers of one key, and an agent of both."""
    keys = tmp_path / "keys"
    init_cluster(keys)
    add_agent(keys, "h1")
    secret = read_key(keys / "controller.key").secret
    with ExitStack() as held:
        first, second = (OneOfTwo("tcp://127.0.0.1:*", secret=secret) for _ in range(2))
        held.callback(first.close)
        held.callback(second.close)
        agents = Agents(tmp_path, f"{first.endpoint},{second.endpoint}")
        held.callback(agents.end_all)
        agents.start("--keys-dir", str(keys))
        yield first, second


def test_it_follows_the_standbys_word_and_then_the_successors(two: tuple[OneOfTwo, OneOfTwo]) -> None:
    first, second = two
    second.leads(1)
    first.leader = second.endpoint
    until_it_works_for(second, first)
    first.leads(2)
    second.leader = first.endpoint
    until_it_works_for(first, second)


def test_a_controller_that_is_gone_is_left_for_its_successor(two: tuple[OneOfTwo, OneOfTwo]) -> None:
    first, second = two
    first.leads(1)
    second.leader = first.endpoint
    until_it_works_for(first, second)
    first.close()
    second.hellos.clear()
    second.until(lambda: len(second.hellos) > 1)
    second.leads(2)
    until_it_works_for(second)


def test_a_leader_that_was_frozen_is_left_and_obeyed_no_more(two: tuple[OneOfTwo, OneOfTwo]) -> None:
    first, second = two
    first.leads(1)
    until_it_works_for(first)
    second.leads(2)
    until_it_works_for(second)
    while first._socket.poll(0):  # What was sent while it was frozen.
        first._socket.recv_multipart()
    first.beats.clear()
    first.hellos.clear()
    second.leader = first.endpoint  # Only to send the agent there.
    while len(first.hellos) < 2:
        first.work()
        second.work()
    assert first.beats == []
    second.leads(3)
    until_it_works_for(second, first)
    assert first.beats == []
