"""What every source of GPU counters offers to the process that reads it, and what those that ask the driver
share.

Rule: one value per device, and NaN (or no entry) where there is none. A device that fails costs its own
values only; it keeps its problem until it answers again. Everything here may hang with the driver, so nothing
but `device_child.py` calls it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from cotenant.profiler.driver.facts import NvmlError
from cotenant.profiler.driver.library import Library, handle_of, memory_mib
from cotenant.profiler.indicators.sources import Indicator, SourceName

IndicatorValues = dict[Indicator, float]
"""NaN where the driver has no value."""


class Unsupported(Exception):
    """The error of devices that have no such counters, or may not be asked; the text says why."""


class Taken(NamedTuple):
    """A sample of all devices, and the time it is about (monotonic clock)."""

    since_s: float
    at_s: float
    period_s: float
    devices: list[IndicatorValues]
    """One per device asked for, in that order; empty for a device that failed."""


class DeviceMemory(NamedTuple):
    used_mib: float
    total_mib: float


class Counters(Protocol):
    """Counters of some devices. What is wrong with all of them is raised as `Unsupported`."""

    name: SourceName
    period_s: float
    """The shortest that makes sense: 0.1 s, or the source's own minimum."""
    offers: tuple[Indicator, ...]
    """All that this source can ever know."""
    gauges: frozenset[Indicator]
    """Values that are not means over the sample's whole time."""
    lacks: str
    """Why another indicator is missing."""

    def read(self) -> Taken | None:
        """Since the last time; None: nothing to compare with, or nothing new."""

    def memory(self) -> list[DeviceMemory | None]:
        """The memory of each device, now."""

    def problems(self) -> list[str]:
        """The reasons, one for each device, why it had no values the last time; empty where it had."""

    def close(self) -> None: ...


class DriverCounters:
    def __init__(
        self, nvml: Library, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Closes the library in the end. Raises Unsupported: none of the devices is there."""
        self._nvml = nvml
        self._clock = clock
        self._at_s = -math.inf
        """When they were read last."""
        self._problems = [""] * len(uuids)
        self._handles = [self._open(number, uuid) for number, uuid in enumerate(uuids)]
        """None for one that is not asked."""
        self._check()

    def _open(self, number: int, uuid: str) -> Any:
        try:
            return handle_of(self._nvml, uuid)
        except NvmlError as error:
            self._note_failure(number, error)
            return None

    def _note_failure(self, number: int, error: NvmlError) -> None:
        self._problems[number] = f"NVML: {error.what}"

    def _check(self) -> None:
        """Checks that a device answers. Raises Unsupported: none of them answers."""
        if all(self._problems):
            raise Unsupported(self._problems[0])

    def memory(self) -> list[DeviceMemory | None]:
        """What is in use, whoever uses it."""
        return [None if handle is None else self._memory_of(handle) for handle in self._handles]

    def _memory_of(self, handle: Any) -> DeviceMemory | None:
        try:
            now = memory_mib(self._nvml, handle)
        except NvmlError:
            return None
        return None if now.total_mib is None else DeviceMemory(float(now.taken_mib), float(now.total_mib))

    def problems(self) -> list[str]:
        return self._problems

    def close(self) -> None:
        self._nvml.close()
