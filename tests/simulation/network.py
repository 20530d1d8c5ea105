"""Connections between agents and the controller that delay, drop, repeat, reorder and fall silent.

Rule: what was sent may arrive at any later time or never, and after anything sent later; nothing arrives
that was not sent. A connection that its owner closed swallows what is still on its way to that owner.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.clockwork import Clockwork


class Weather:
    """How one host's connection is at present."""

    def __init__(self) -> None:
        self.up = True
        """From the host to the controller."""
        self.down = True
        self.loss = 0.0
        self.repeats = 0.0
        self.delay_s = 0.05
        self.straggle_s = 0.0
        """One message in twenty takes up to this much longer."""


class Network:
    def __init__(self, clock: Clockwork) -> None:
        self._clock = clock
        self._weather: dict[str, Weather] = {}
        self._receivers: dict[bytes, Callable[[bytes], None]] = {}
        """Open connections by address."""
        self.controller: Callable[[bytes, bytes], None] | None = None
        self.lost, self.carried = 0, 0

    def weather(self, host: str) -> Weather:
        return self._weather.setdefault(host, Weather())

    def open(self, address: bytes, receive: Callable[[bytes], None]) -> None:
        self._receivers[address] = receive

    def close(self, address: bytes) -> None:
        self._receivers.pop(address, None)

    def is_open(self, address: bytes) -> bool:
        """What the controller's socket believes: a peer that it cannot reach looks open."""
        return address in self._receivers or not self.weather(host_of(address)).up

    def to_controller(self, address: bytes, frame: bytes) -> None:
        if self.weather(host_of(address)).up:
            self._carry(host_of(address), lambda: self._arrive(address, frame))
        else:
            self.lost += 1

    def to_agent(self, address: bytes, frame: bytes) -> None:
        if self.weather(host_of(address)).down:
            self._carry(host_of(address), lambda: self._deliver(address, frame))
        else:
            self.lost += 1

    def _carry(self, host: str, deliver: Callable[[], None]) -> None:
        weather, chance = self.weather(host), self._clock.chance
        copies = 1 + (chance.random() < weather.repeats)
        for _ in range(copies):
            if chance.random() < weather.loss:
                self.lost += 1
                continue
            delay_s = chance.uniform(0.001, weather.delay_s)
            if weather.straggle_s and chance.random() < 0.05:
                delay_s += chance.uniform(0.0, weather.straggle_s)
            self._clock.after(delay_s, deliver)

    def _arrive(self, address: bytes, frame: bytes) -> None:
        if self.controller is not None:
            self.carried += 1
            self.controller(address, frame)

    def _deliver(self, address: bytes, frame: bytes) -> None:
        receive = self._receivers.get(address)
        if receive is not None:
            self.carried += 1
            receive(frame)


def host_of(address: bytes) -> str:
    return address.decode().partition("/")[0]
