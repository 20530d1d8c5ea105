"""Counters of NVIDIA GPUs from NVML's GPM (Hopper and later).

GPM compares two samples, which must be more than 100 ms apart; metrics are addressed by number, because names
differ between versions. Percentages become shares, MiB per second become bytes per second. On Hopper and
later DCGM's profiling fields are these same values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from cotenant.profiler.driver.facts import NvmlError
from cotenant.profiler.driver.library import MIB, Library
from cotenant.profiler.indicators.counters import DriverCounters, IndicatorValues, Taken
from cotenant.profiler.indicators.sources import Indicator, SourceName

APART_S_MIN: Final = 0.1
PERIOD_S: Final = 0.11
SHARES: Final[dict[Indicator, int]] = {
    Indicator.GRACT: 1,
    Indicator.SMACT: 2,
    Indicator.SMOCC: 3,
    Indicator.INTA: 4,
    Indicator.TENSO: 5,
    Indicator.DRAMA: 10,
    Indicator.FP64A: 11,
    Indicator.FP32A: 12,
    Indicator.FP16A: 13,
}
"""GPM's number; a percentage."""
RATES: Final[dict[Indicator, int]] = {
    Indicator.PCITX: 20,
    Indicator.PCIRX: 21,
    Indicator.NVLRX: 60,
    Indicator.NVLTX: 61,
}
"""GPM's number; MiB per second. For NVLink reading comes first."""


class Gpm(DriverCounters):
    """The counters of some devices of this host, and what they were the last time."""

    name: SourceName = "gpm"
    period_s = PERIOD_S
    offers = (*SHARES, *RATES)
    gauges: frozenset[Indicator] = frozenset()
    lacks = "this GPU or driver has no such counter"

    def __init__(
        self, nvml: Library, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepares the buffers of each device. Raises Unsupported: none of the devices has counters that we
        may read."""
        super().__init__(nvml, uuids, clock)
        self._buffers = [self._make_buffers(number, uuid) for number, uuid in enumerate(uuids)]
        """Two per device, used in turn: a sample is a buffer of the driver's. None for one without GPM."""
        self._check()
        self._newest = 0
        self._filled = [[False, False] for _ in uuids]

    def _make_buffers(self, number: int, uuid: str) -> list[Any]:
        """Lets go of a device that has no counters."""
        handle = self._handles[number]
        if handle is None:
            return []
        try:
            if self._nvml.ask("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
                return [self._nvml.ask("nvmlGpmSampleAlloc") for _ in "01"]
            self._problems[number] = f"{uuid} has no GPM counters (they came with Hopper)"
        except NvmlError as error:
            self._note_failure(number, error)
        self._handles[number] = None
        return []

    def read(self) -> Taken | None:
        """Takes a sample of all devices. Raises Unsupported: no device answers any more."""
        before_s, self._at_s = self._at_s, self._clock()
        self._newest = 1 - self._newest
        for number in range(len(self._buffers)):
            self._take(number)
        self._check()
        if self._at_s - before_s <= APART_S_MIN or math.isinf(before_s):
            return None
        devices = [self._interval_values(number) for number in range(len(self._buffers))]
        return Taken(before_s, self._at_s, PERIOD_S, devices)

    def _take(self, number: int) -> None:
        """Fill the newer buffer of a device."""
        handle = self._handles[number]
        if handle is None:
            return
        self._filled[number][self._newest] = False
        try:
            self._nvml.ask("nvmlGpmSampleGet", handle, self._buffers[number][self._newest])
        except NvmlError as error:
            self._note_failure(number, error)
            return
        self._filled[number][self._newest] = True
        self._problems[number] = ""

    def _interval_values(self, number: int) -> IndicatorValues:
        """Empty where one of the two samples is missing."""
        if not all(self._filled[number]):
            return {}
        older, newer = self._buffers[number][1 - self._newest], self._buffers[number][self._newest]
        try:
            return self._compare(older, newer)
        except NvmlError as error:
            self._note_failure(number, error)
            return {}

    def _compare(self, before: Any, after: Any) -> IndicatorValues:
        wanted = [*SHARES.items(), *RATES.items()]
        asked = self._nvml.binding.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.binding.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(wanted)
        asked.sample1, asked.sample2 = before, after
        for at, (_, number) in enumerate(wanted):
            asked.metrics[at].metricId = number
        self._nvml.ask("nvmlGpmMetricsGet", asked)
        found: IndicatorValues = {}
        for at, (name, _) in enumerate(wanted):
            metric = asked.metrics[at]
            good = metric.nvmlReturn == 0 and math.isfinite(metric.value)
            factor = 0.01 if name in SHARES else float(MIB)
            found[name] = metric.value * factor if good else math.nan
        return found

    def close(self) -> None:
        for buffers in self._buffers:
            for buffer in buffers:
                self._nvml.maybe("nvmlGpmSampleFree", buffer)
        super().close()
