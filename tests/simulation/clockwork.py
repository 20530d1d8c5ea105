"""Virtual time, one source of chance, and a trace: the same seed, the same run.

Rule: nothing in this folder reads a real clock or any other source of chance.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

AT_ONCE_MAX = 10_000
"""More happenings than these at one moment are somebody who asks to be woken in the past."""


class Clockwork:
    """Everything that will happen, in order."""

    def __init__(self, seed: int, *, loud: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.lines: list[str] = []
        self._loud = loud
        self._upcoming: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._at_once = 0

    def after(self, wait_s: float, do: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._upcoming, (self.now_s + max(0.0, wait_s), self._count, do, args))

    def soon(self, most_s: float, do: Callable[..., None], *args: Any) -> None:
        """After a random time."""
        self.after(self.chance.uniform(0.0, most_s), do, *args)

    def step(self) -> bool:
        """Let the next thing happen; False if nothing ever will."""
        if not self._upcoming:
            return False
        at_s, _, do, args = heapq.heappop(self._upcoming)
        self._at_once = self._at_once + 1 if at_s <= self.now_s else 0
        assert self._at_once < AT_ONCE_MAX, f"time stands still at {self.now_s}: {do}"
        self.now_s = max(self.now_s, at_s)
        do(*args)
        return True

    def say(self, text: str) -> None:
        """A line of the trace. The newest stay, for the story of a failure."""
        line = f"{self.now_s:9.3f}  {text}"
        if self._loud:
            print(line)
        self.lines.append(line)
        if len(self.lines) > 4000:
            del self.lines[:2000]


class Alarm:
    """One thing's next alarm; a new time replaces the old one."""

    def __init__(self, clock: Clockwork, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._set_for: float | None = None
        self._version = 0

    def set(self, at_s: float | None) -> None:
        if at_s is None or at_s == float("inf"):
            self.clear()
            return
        at_s = max(at_s, self._clock.now_s)
        if at_s != self._set_for:
            self._version += 1
            self._set_for = at_s
            self._clock.after(at_s - self._clock.now_s, self._due, self._version)

    def clear(self) -> None:
        self._version += 1
        self._set_for = None

    def _due(self, version: int) -> None:
        if version == self._version:
            self._set_for = None
            self._ring()
