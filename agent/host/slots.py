"""How busy the cores of CPU slots are, from /proc/stat.

Rule: what a device does, whoever does it: everything that runs on a slot's cores counts, as everything that
runs on a GPU does. The kernel counts in ticks of 10 ms; time that a hypervisor took away was not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.controller.domain.cluster import Device

PROC_STAT: Final = Path("/proc/stat")
SOURCE: Final = "cpu"
LACKS: Final = "a CPU slot has no counters of pipes, memory or links"

Ticks = dict[int, tuple[int, int]]
"""Core -> (busy, all)."""


class SlotUse:
    """Of all cores, between two readings."""

    def __init__(
        self, read: Callable[[], str] = PROC_STAT.read_text, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._before: Ticks = {}
        self._now: Ticks = {}
        self._before_s = self._now_s = clock()

    def look(self) -> None:
        """Read the counters; from now on `values` is about the time since the last look."""
        self._before, self._before_s = self._now, self._now_s
        try:
            self._now, self._now_s = ticks_of(self._read()), self._clock()
        except (OSError, ValueError):
            self._now = {}

    @property
    def lasted_s(self) -> float:
        return self._now_s - self._before_s

    def values(self, device: Device) -> dict[str, float]:
        """By Table 2's names; empty where there is nothing to compare with, or a core has gone."""
        shares = [self._share(core) for core in device.cores]
        known = [share for share in shares if share is not None]
        if not known or len(known) < len(shares):
            return {}
        used = sum(known)
        return {"GRACT": min(1.0, used), "SMACT": used / len(known), "CPU": used}

    def _share(self, core: int) -> float | None:
        before, now = self._before.get(core), self._now.get(core)
        if before is None or now is None or now[1] <= before[1] or now[0] < before[0]:
            return None  # Counters that went back belong to a core that was off.
        return min(1.0, (now[0] - before[0]) / (now[1] - before[1]))


def ticks_of(text: str) -> Ticks:
    """Raises ValueError: not what /proc/stat looks like."""
    found: Ticks = {}
    for line in text.splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, wait, *rest = map(int, counts[:8])
            interrupts = sum(rest[:2])
            busy = user + nice + system + interrupts
            found[int(name[3:])] = (busy, busy + idle + wait + sum(rest[2:]))
    return found
