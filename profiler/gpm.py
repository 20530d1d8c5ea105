"""Counters of NVIDIA GPUs from NVML's GPM (Hopper and later).

GPM compares two samples, which must be more than 100 ms apart; metrics are addressed by number, because names
differ between versions. Percentages become shares, MiB per second become bytes per second. On Hopper and
later DCGM's profiling fields are these same values.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from cotenant.profiler.counters import Memory, Taken, Unsupported, Values
from cotenant.profiler.nvml import memory_of
from cotenant.profiler.sources import Indicator, SourceName

MIB: Final = 1024 * 1024
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


class Gpm:
    """The counters of some devices of this host, and what they were the last time."""

    name: SourceName = "gpm"
    period_s = PERIOD_S
    offers = (*SHARES, *RATES)
    gauges: frozenset[Indicator] = frozenset()
    lacks = "this GPU or driver has no such counter"

    def __init__(
        self, pynvml: ModuleType, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises Unsupported: none of the devices has counters that we may read."""
        self._nvml: Any = pynvml
        self._clock = clock
        self._problems = [""] * len(uuids)
        self._buffers: list[list[Any]] = []
        """Two per device, used in turn: a sample is a buffer of the driver's. None for one without GPM."""
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise Unsupported(f"NVML: {error}") from None
        self._handles = [self._open(number, uuid) for number, uuid in enumerate(uuids)]
        if all(self._problems):
            raise Unsupported(self._problems[0])
        self._newest = 0
        self._at_s = -math.inf
        self._filled = [[False, False] for _ in self._handles]

    def _open(self, number: int, uuid: str) -> Any:
        """The device's handle, with its buffers; None if it has no counters."""
        self._buffers.append([])
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            if self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._buffers[-1] = [self._nvml.nvmlGpmSampleAlloc() for _ in "01"]
                return handle
            self._problems[number] = f"{uuid} has no GPM counters (they came with Hopper)"
        except self._nvml.NVMLError as error:
            self._problems[number] = f"NVML: {error}"
        return None

    def read(self) -> Taken | None:
        """Raises Unsupported: no device answers any more."""
        before_s, self._at_s = self._at_s, self._clock()
        self._newest = 1 - self._newest
        for number in range(len(self._handles)):
            self._take(number)
        if all(self._problems):
            raise Unsupported(self._problems[0])
        if self._at_s - before_s <= APART_S_MIN or math.isinf(before_s):
            return None
        devices = [self._since_before(number) for number in range(len(self._handles))]
        return Taken(before_s, self._at_s, PERIOD_S, devices)

    def _take(self, number: int) -> None:
        """Fill the newer buffer of a device."""
        if self._handles[number] is None:
            return
        self._filled[number][self._newest] = False
        try:
            self._nvml.nvmlGpmSampleGet(self._handles[number], self._buffers[number][self._newest])
        except self._nvml.NVMLError as error:
            self._problems[number] = f"NVML: {error}"
            return
        self._filled[number][self._newest] = True
        self._problems[number] = ""

    def _since_before(self, number: int) -> Values:
        """Empty where one of the two samples is missing."""
        if not all(self._filled[number]):
            return {}
        older, newer = self._buffers[number][1 - self._newest], self._buffers[number][self._newest]
        try:
            return self._compare(older, newer)
        except self._nvml.NVMLError as error:
            self._problems[number] = f"NVML: {error}"
            return {}

    def _compare(self, before: Any, after: Any) -> Values:
        wanted = [*SHARES.items(), *RATES.items()]
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(wanted)
        asked.sample1, asked.sample2 = before, after
        for at, (_, number) in enumerate(wanted):
            asked.metrics[at].metricId = number
        self._nvml.nvmlGpmMetricsGet(asked)
        found: Values = {}
        for at, (name, _) in enumerate(wanted):
            metric = asked.metrics[at]
            good = metric.nvmlReturn == 0 and math.isfinite(metric.value)
            factor = 0.01 if name in SHARES else float(MIB)
            found[name] = metric.value * factor if good else math.nan
        return found

    def memory(self) -> list[Memory | None]:
        return [memory_of(self._nvml, handle) if handle is not None else None for handle in self._handles]

    def problems(self) -> list[str]:
        return self._problems

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # The GPU, or the driver, may have gone first.
            for buffers in self._buffers:
                for buffer in buffers:
                    self._nvml.nvmlGpmSampleFree(buffer)
            self._nvml.nvmlShutdown()
