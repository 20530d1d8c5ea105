"""What every source of GPU counters offers to the process that reads it.

Rule: one value per device, and NaN (or no entry) where there is none. A device that fails does not take the
others' values with it. Everything here may hang with the driver, so nothing but `device_child.py` calls it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cotenant.profiler.indicators.sources import Indicator, SourceName

Values = dict[Indicator, float]
"""NaN where the driver has no value."""


class Unsupported(Exception):
    """These devices have no such counters, or may not be asked; the text says why."""


class Taken(NamedTuple):
    """One sample of all devices, and the time it is about (monotonic clock)."""

    since_s: float
    at_s: float
    period_s: float
    devices: list[Values]
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
        """Per device, now."""

    def problems(self) -> list[str]:
        """Per device: why it had no values the last time; empty where it had."""

    def close(self) -> None: ...
