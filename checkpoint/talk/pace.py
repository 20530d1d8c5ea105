"""How much of the time this process may train: it waits between micro-batches, so that a co-tenant on its
device is not slowed beyond its bound.

The supervisor writes the pace to a file beside its socket: two little-endian doubles, the pace and when it
stops counting (CLOCK_MONOTONIC). Looking costs less than a microsecond where the pace is 1.

Rule: a wait changes when things happen and nothing else: queued work is finished first, then the thread
sleeps. Nothing here raises, and whoever wrote the file may be gone: a pace that is not renewed counts no
more.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.checkpoint.talk.protocol import PACE_FILE

FORMAT: Final = struct.Struct("<dd")
_LEAST_S: Final = 1e-6
_LOOK_S: Final = 0.005
"""While it waits, a process looks so often whether its pace has changed."""


class RankPace:
    """The pace of this process. Where there is no file nothing ever waits."""

    def __init__(
        self,
        path: Path | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._since_s = clock()
        self._data: mmap.mmap | None = None
        self.waited_s = 0.0
        """In all."""
        try:
            if path is not None:
                with open(path, "rb") as file:
                    self._data = mmap.mmap(file.fileno(), FORMAT.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return  # An older supervisor makes none.

    def wait(self) -> None:
        """Waits for its part of the time since it last returned; returns at once where the pace is 1."""
        if self._data is None or self._now() >= 1.0:
            self._since_s = self._clock()
            return
        finish_queued_work()
        began_s = self._clock()
        worked_s = began_s - self._since_s
        while (pace := self._now()) < 1.0:
            waited_s = self._clock() - began_s
            left_s = worked_s * (1.0 - pace) / pace - waited_s if pace > 0.0 else _LOOK_S
            if left_s < _LEAST_S:
                break
            self._sleep(min(left_s, _LOOK_S))
        self._since_s = self._clock()
        self.waited_s += self._since_s - began_s

    def _now(self) -> float:
        """The pace that counts at this moment, 0 to 1."""
        assert self._data is not None
        pace, until_s = FORMAT.unpack(self._data[: FORMAT.size])
        return min(1.0, max(0.0, float(pace))) if until_s > self._clock() else 1.0


def pace_of(environ: dict[str, str] | os._Environ[str], name: str) -> RankPace:
    """The pace of this process, by the variable `name` with the supervisor's socket in it."""
    socket = environ.get(name)
    return RankPace(Path(socket).parent / PACE_FILE if socket else None)


def finish_queued_work() -> None:
    """Waits for the device: what was launched before the pause is not to run during it."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()
