"""Streams of bytes over a line that loses, repeats and reorders: they come out once and in order."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.wire import WINDOW_BYTES, ClientStream, HostStream, StreamAsk, StreamTold


class StreamWorld:
    """Both ends of a stream, and questions and answers on their way between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.client, self.host = ClientStream("one"), HostStream()
        self.typed, self.arrived = b"", b""
        self.printed, self.shown = b"", b""
        self.asks: list[StreamAsk] = []
        self.answers: list[tuple[StreamAsk, StreamTold]] = []

    def types(self) -> None:
        data = self.random.randbytes(self.random.randint(0, self.client.room))
        self.client.put(data)
        self.typed += data

    def prints(self) -> None:
        """As much as it may: a job that floods."""
        data = self.random.randbytes(self.random.randint(0, self.host.room))
        self.host.sent.put(data)
        self.printed += data

    def asks_to_read(self) -> None:
        self.asks.append(self.client.ask_to_read(0.0))

    def asks_to_write(self) -> None:
        self.asks.append(self.client.ask_to_write(0.0))

    def host_hears(self) -> None:
        if self.asks:
            ask: StreamAsk = self.take(self.asks)
            self.host.take_in(ask)
            self.answers.append((ask, self.host.answer(ask)))

    def host_passes_on(self) -> None:
        size = self.random.randint(0, len(self.host.unwritten))
        self.arrived += self.host.unwritten[:size]
        del self.host.unwritten[:size]

    def client_hears(self) -> None:
        if self.answers:
            ask, told = self.take(self.answers)
            if ask.limit:
                self.shown += self.client.read(told)
            else:
                self.client.has_written(told)

    def take(self, line: list[Any]) -> Any:
        """One that has come, whichever; perhaps it comes again, and perhaps others are lost."""
        at = self.random.randrange(len(line))
        found = line[at] if self.random.random() < 0.3 else line.pop(at)
        if self.random.random() < 0.2:
            line.clear()
        return found

    def heal(self) -> None:
        """From now on every question is answered."""
        for _ in range(4):
            self.asks, self.answers = [self.client.ask_to_read(0.0), self.client.ask_to_write(0.0)], []
            for ask in self.asks:
                self.host.take_in(ask)
                told = self.host.answer(ask)
                self.shown += self.client.read(told) if ask.limit else b""
                self.client.has_written(told)
            self.arrived += self.host.unwritten
            self.host.unwritten.clear()


@given(st.integers(), st.integers(10, 150))
def test_whatever_is_lost_or_repeated_the_bytes_come_out_once_and_in_order(seed: int, moves: int) -> None:
    world = StreamWorld(seed)
    world.asks_to_read()
    world.host.take_in(world.asks[0])  # From now on it is followed.
    doing = (
        world.types,
        world.prints,
        world.asks_to_read,
        world.asks_to_write,
        world.host_hears,
        world.host_passes_on,
        world.client_hears,
    )
    for _ in range(moves):
        world.random.choice(doing)()
        assert world.printed.startswith(world.shown) and world.typed.startswith(world.arrived)
        assert world.host.sent.end - world.host.sent.start <= WINDOW_BYTES
        assert len(world.host.unwritten) <= WINDOW_BYTES
    world.heal()
    assert (world.shown, world.arrived) == (world.printed, world.typed)
    assert world.client.missed == 0 and world.client.is_sent


def test_a_client_that_does_not_read_stops_what_is_read_for_it() -> None:
    host, client = HostStream(), ClientStream("one")
    host.take_in(client.ask_to_read(0.0))
    host.sent.put(b"x" * host.room)
    assert host.room == 0
    client.read(host.answer(client.ask_to_read(0.0)))
    host.take_in(client.ask_to_read(0.0))
    assert host.room == WINDOW_BYTES


def test_what_nobody_asked_for_in_time_is_counted_as_missed() -> None:
    host, client = HostStream(), ClientStream("one")
    host.sent.put(b"old")
    assert client.read(host.answer(client.ask_to_read(0.0))) == b"old" and client.missed == 0
    host.is_followed = False
    host.sent.put(b"x" * 100 + b"y" * WINDOW_BYTES)
    assert client.read(host.answer(client.ask_to_read(0.0))) == b"y" * WINDOW_BYTES
    assert (client.missed, client.seen) == (100, 103 + WINDOW_BYTES)


def test_the_end_is_told_after_the_last_byte() -> None:
    host, client = HostStream(), ClientStream("one")
    host.sent.put(b"bye")
    host.is_over = True
    first = host.answer(client.ask_to_read(0.0))
    assert (first.state, client.read(first)) == ("open", b"bye")
    last = client.ask_to_read(0.0)
    assert host.is_due(last) and host.answer(last).state == "ended"
