"""The cluster's time: seconds since the journal began, never decreasing.

Rule: within a run only the monotonic clock counts, so that a jump of the wall clock moves nothing.
Between runs the wall clock's difference is added, clamped at 0 (`Journal.begin_run`).
"""

from __future__ import annotations

import time
from collections.abc import Callable


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
