"""The cluster's time: the seconds since its journal began.

Rule: time never decreases. As long as the machine is up only its monotonic clock counts, over restarts of the
controller too, so that a jump of the wall clock moves nothing. Over a reboot, or on another machine, the wall
clock's difference is added, clamped at 0 (`Journal.begin_run`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Uptime(NamedTuple):
    """A moment by the monotonic clock, which means something within one boot only."""

    boot_id: str
    """Empty: not known here."""
    monotonic_s: float


UNKNOWN: Final = Uptime("", 0.0)


def uptime() -> Uptime:
    """Reads how long this machine has been up, and in which boot."""
    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot_id = ""
    return Uptime(boot_id, time.monotonic())


class Clock:
    """`now_s` of one run."""

    def __init__(
        self,
        start_s: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._offset_s = start_s - monotonic()
        self._latest_s = start_s
        self.wall = wall

    def now_s(self) -> float:
        self._latest_s = max(self._latest_s, self._monotonic() + self._offset_s)
        return self._latest_s
