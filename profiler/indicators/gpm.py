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

from cotenant.profiler.driver.library import MIB, Library
from cotenant.profiler.indicators.counters import DriverCounters, Unsupported
from cotenant.profiler.indicators.sources import Indicator, IndicatorValues, SourceName

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
FACTORS: Final = dict.fromkeys(SHARES, 0.01) | dict.fromkeys(RATES, float(MIB))


class Gpm(DriverCounters):
    """The counters of some devices of this host, and what they were the last time."""

    name: SourceName = "gpm"
    about = "NVML's GPM counters, every {period:g} s"
    offers = (*SHARES, *RATES)
    lacks = "this GPU or driver has no such counter"
    blank = "GPM answers, but without values"
    apart_s = 0.1
    period_s = PERIOD_S

    def __init__(
        self, nvml: Library, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepares the buffers of each device. Raises Unsupported: none of the devices has counters that we
        may read."""
        self._buffers: dict[int, list[Any]] = {}
        """Two per device, the older sample first: a sample is a buffer of the driver's."""
        self._is_filled = [False] * len(uuids)
        """The newer one."""
        super().__init__(nvml, uuids, clock)

    def prepare(self, number: int, handle: Any) -> None:
        if not self._nvml.ask("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
            raise Unsupported(f"{self._uuids[number]} has no GPM counters (they came with Hopper)")
        self._buffers[number] = [self._nvml.ask("nvmlGpmSampleAlloc") for _ in "01"]

    def read_device(self, number: int, handle: Any, at_s: float) -> IndicatorValues:
        """Empty where there is nothing to compare with."""
        newest, before = self._buffers[number]
        was_filled, self._is_filled[number] = self._is_filled[number], False
        self._nvml.ask("nvmlGpmSampleGet", handle, newest)
        self._buffers[number], self._is_filled[number] = [before, newest], True
        return self._compare(before, newest) if was_filled and at_s - self._at_s > self.apart_s else {}

    def _compare(self, before: Any, after: Any) -> IndicatorValues:
        wanted = SHARES | RATES
        asked = self._nvml.binding.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.binding.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(wanted)
        asked.sample1, asked.sample2 = before, after
        for at, number in enumerate(wanted.values()):
            asked.metrics[at].metricId = number
        self._nvml.ask("nvmlGpmMetricsGet", asked)
        return {
            name: asked.metrics[at].value * FACTORS[name]
            if asked.metrics[at].nvmlReturn == 0 and math.isfinite(asked.metrics[at].value)
            else math.nan
            for at, name in enumerate(wanted)
        }

    def close(self) -> None:
        for buffers in self._buffers.values():
            for buffer in buffers:
                self._nvml.maybe("nvmlGpmSampleFree", buffer)
        super().close()
