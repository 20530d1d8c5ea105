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

from cotenant.profiler.driver.facts import NvmlError
from cotenant.profiler.driver.library import Library
from cotenant.profiler.indicators.counters import DriverCounters, IndicatorValues, Taken
from cotenant.profiler.indicators.sources import Counter, Indicator, SourceName

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
    offers = (Indicator.GRACT, Indicator.DRAMA, *PCIE, *NVLINK)
    gauges = frozenset((Indicator.GRACT, Indicator.DRAMA, *PCIE))
    lacks = "plain NVML has no such counter"

    def __init__(
        self, nvml: Library, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Opens the devices with these UUIDs. Raises Unsupported: none of the devices is there."""
        super().__init__(nvml, uuids, clock)
        self.period_s = max(PERIOD_S_MIN, 2 * PCIE_S * len(uuids))
        self._links = [{name: Counter() for name in NVLINK} for _ in uuids]

    def read(self) -> Taken | None:
        """Reads a sample of all devices. Raises Unsupported: no device answers any more."""
        before_s, self._at_s = self._at_s, self._clock()
        devices = [self._device(number) for number in range(len(self._links))]
        self._check()
        if self._at_s <= before_s or math.isinf(before_s):
            return None
        return Taken(before_s, self._at_s, self.period_s, devices)

    def _device(self, number: int) -> IndicatorValues:
        handle = self._handles[number]
        if handle is None:
            return {}
        try:
            utilization = self._nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        except NvmlError as error:
            self._note_failure(number, error)
            return {}
        self._problems[number] = ""
        found = {Indicator.GRACT: utilization.gpu / 100, Indicator.DRAMA: utilization.memory / 100}
        found |= {name: self._pcie(handle, counter) for name, counter in PCIE.items()}
        return found | self._nvlink(number, handle)

    def _pcie(self, handle: Any, counter: int) -> float:
        kilobytes = self._nvml.maybe("nvmlDeviceGetPcieThroughput", handle, counter)
        return math.nan if kilobytes is None else 1000.0 * float(kilobytes)

    def _nvlink(self, number: int, handle: Any) -> IndicatorValues:
        wanted = [(field, ALL_LINKS) for field in NVLINK.values()]
        fields = self._nvml.maybe("nvmlDeviceGetFieldValues", handle, wanted)
        if fields is None:
            return dict.fromkeys(NVLINK, math.nan)
        counts = {
            name: 1024.0 * field.value.ullVal
            if field.nvmlReturn == 0 and field.valueType == UNSIGNED_LONG_LONG
            else math.nan
            for name, field in zip(NVLINK, fields, strict=True)
        }
        return {name: self._links[number][name].rate(count, self._at_s) for name, count in counts.items()}
