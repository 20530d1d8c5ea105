"""How busy other programs keep the demo's cores, so that its times can be judged.

Rule: a core's time belongs to the demo if one of its processes or their descendants had it; all other busy
time is somebody else's, the hypervisor's included, and the last moments of a process that ends between two
looks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

BEFORE_S: Final = 1.0
EVERY_S: Final = 1.0
"""Between two looks, at least."""
BUSY_RATIO: Final = 0.15
"""From this share of the cores on, the machine counts as busy."""


class CpuTimes(NamedTuple):
    """Seconds of processor time at one moment, counted from some time in the past."""

    at_s: float
    busy_s: float
    """Of all cores together."""
    own_s: dict[int, float]
    """Of the demo's processes, by pid."""


class OthersLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Field for field `others` in `report.json`: cores that other programs kept busy."""

    cores: int
    before: float
    during: float

    @property
    def is_busy(self) -> bool:
        return max(self.before, self.during) > BUSY_RATIO * self.cores

    def sentence(self) -> str:
        """A sentence on the other programs' load, to stand beside the figures."""
        verdict = (
            "they took time from the jobs, and on a quiet machine these figures are better"
            if self.is_busy
            else "a quiet machine"
        )
        return (
            f"other programs kept {self.before:.1f} of {self.cores} cores busy before the first job, "
            f"{self.during:.1f} while the jobs ran: {verdict}"
        )


class OthersWatch:
    """Adds up whose the cores' time was from the first look to the last."""

    def __init__(
        self,
        cpu_times: Callable[[], CpuTimes] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_times, self._clock_s = cpu_times or _cpu_times, clock_s
        self._first: CpuTimes | None = None
        self._last: CpuTimes | None = None

    def look(self) -> None:
        """Costs some milliseconds, so that often is too often: most calls return at once."""
        if self._last is not None and self._clock_s() < self._last.at_s + EVERY_S:
            return
        now = self._cpu_times()
        if self._last is not None:  # What a process that has ended had is still the demo's.
            now = now._replace(own_s={**self._last.own_s, **now.own_s})
        self._first, self._last = self._first or now, now

    @property
    def busy_cores(self) -> float:
        """Cores that others kept busy, on average; 0 before the second look."""
        first, last = self._first, self._last
        if first is None or last is None or last.at_s <= first.at_s:
            return 0.0
        own_s = sum(last.own_s.values()) - sum(first.own_s.values())
        return round(max(0.0, last.busy_s - first.busy_s - own_s) / (last.at_s - first.at_s), 2)


def busy_cores_now() -> float:
    """The number of cores that other programs keep busy over one second from now."""
    watch = OthersWatch()
    watch.look()
    time.sleep(BEFORE_S)
    watch.look()
    return watch.busy_cores


def _cpu_times() -> CpuTimes:
    """The CPU times of the cores that this process may use, and of this process and all that it has
    started."""
    import psutil

    each_core = psutil.cpu_times(percpu=True)
    busy_s = sum(
        sum(each_core[core]) - each_core[core].idle - getattr(each_core[core], "iowait", 0.0)
        for core in os.sched_getaffinity(0)
        if core < len(each_core)
    )
    me, own_s = psutil.Process(), dict[int, float]()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # It has just ended.
            continue
        own_s[process.pid] = times.user + times.system
    return CpuTimes(time.monotonic(), busy_s, own_s)
