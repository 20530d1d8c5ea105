"""Counters of NVIDIA GPUs from plain NVML: what every GPU has, and no more.

Rule: no counter stands in for another. NVML knows for which part of its last sampling period anything
ran (GRACT) or memory was used (DRAMA, by time, not by bandwidth); it has nothing like SMACT, SMOCC or the
pipes, and these are missing. Its sampling period is 1/6 s to 1 s, by product. PCIe throughput is counted over
20 ms while we wait, in KB/s. NVLink's counters rise for ever, in KiB; they are read by field number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from cotenant.profiler.driver.library import Library
from cotenant.profiler.indicators.counters import DriverCounters
from cotenant.profiler.indicators.sources import Counter, Indicator, IndicatorValues, SourceName

PERIOD_S_MIN: Final = 0.2
PCIE_S: Final = 0.04
"""Two directions at 20 ms."""
PCIE: Final[dict[Indicator, int]] = {Indicator.PCITX: 0, Indicator.PCIRX: 1}
"""NVML's number of the counter; KB/s (of 1,000 bytes)."""
NVLINK: Final[dict[Indicator, int]] = {Indicator.NVLTX: 138, Indicator.NVLRX: 139}
"""NVML's field number; KiB of data, without protocol."""
ALL_LINKS: Final = 0xFFFF_FFFF
UNSIGNED_LONG_LONG: Final = 3


class Nvml(DriverCounters):
    """The counters of some devices of this host."""

    name: SourceName = "nvml"
    about = "plain NVML, every {period:g} s: no SMACT, SMOCC, TENSO or pipes"
    offers = (Indicator.GRACT, Indicator.DRAMA, *PCIE, *NVLINK)
    gauges = frozenset((Indicator.GRACT, Indicator.DRAMA, *PCIE))
    lacks = "plain NVML has no such counter"
    blank = "NVML answers, but without values"

    def __init__(
        self, nvml: Library, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Opens the devices with these UUIDs. Raises Unsupported: none of the devices is there."""
        super().__init__(nvml, uuids, clock)
        self.period_s = max(PERIOD_S_MIN, 2 * PCIE_S * len(uuids))
        self._links = [{name: Counter() for name in NVLINK} for _ in uuids]

    def read_device(self, number: int, handle: Any, at_s: float) -> IndicatorValues:
        utilization = self._nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        found = {Indicator.GRACT: utilization.gpu / 100, Indicator.DRAMA: utilization.memory / 100}
        for name, counter in PCIE.items():
            kilobytes = self._nvml.maybe("nvmlDeviceGetPcieThroughput", handle, counter)
            found[name] = math.nan if kilobytes is None else 1000.0 * float(kilobytes)
        wanted = [(field, ALL_LINKS) for field in NVLINK.values()]
        fields = self._nvml.maybe("nvmlDeviceGetFieldValues", handle, wanted) or (None, None)
        for name, field in zip(NVLINK, fields, strict=True):
            good = field is not None and field.nvmlReturn == 0 and field.valueType == UNSIGNED_LONG_LONG
            count = 1024.0 * field.value.ullVal if good else math.nan
            found[name] = self._links[number][name].rate(count, at_s)
        return found
