"""Counters of NVIDIA GPUs from plain NVML: what every GPU has, and no more.

Rule: nothing is made out to be what it is not. NVML knows for which part of its last sampling period anything
ran (GRACT) or memory was used (DRAMA, by time, not by bandwidth); it has nothing like SMACT, SMOCC or the
pipes, and these are missing. Its sampling period is 1/6 s to 1 s, by product. PCIe throughput is counted over
20 ms while we wait, in KB/s. NVLink's counters rise for ever, in KiB; they are read by field number.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from cotenant.profiler.counters import Memory, Taken, Unsupported, Values
from cotenant.profiler.sources import Indicator, SourceName
from cotenant.profiler.window import Counter

MIB: Final = 1024 * 1024
PERIOD_S_MIN: Final = 0.2
PCIE_S: Final = 0.04
"""Two directions at 20 ms."""
PCIE: Final[dict[Indicator, int]] = {Indicator.PCITX: 0, Indicator.PCIRX: 1}
"""NVML's number of the counter; KB/s (of 1,000 bytes)."""
NVLINK: Final[dict[Indicator, int]] = {Indicator.NVLTX: 138, Indicator.NVLRX: 139}
"""NVML's field number; KiB of data, without protocol."""
ALL_LINKS: Final = 0xFFFF_FFFF
UNSIGNED_LONG_LONG: Final = 3


class Nvml:
    """The counters of some devices of this host."""

    name: SourceName = "nvml"
    offers = (Indicator.GRACT, Indicator.DRAMA, *PCIE, *NVLINK)
    gauges = frozenset((Indicator.GRACT, Indicator.DRAMA, *PCIE))
    lacks = "plain NVML has no such counter"

    def __init__(
        self, pynvml: ModuleType, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises Unsupported: none of the devices is there."""
        self._nvml: Any = pynvml
        self._clock = clock
        self._problems = [""] * len(uuids)
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise Unsupported(f"NVML: {error}") from None
        self._handles = [self._open(number, uuid) for number, uuid in enumerate(uuids)]
        if all(self._problems):
            raise Unsupported(self._problems[0])
        self.period_s = max(PERIOD_S_MIN, 2 * PCIE_S * len(self._handles))
        self._links = [{name: Counter() for name in NVLINK} for _ in self._handles]
        self._at_s = -math.inf

    def _open(self, number: int, uuid: str) -> Any:
        """The device's handle; None if it is not there."""
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            self._problems[number] = f"NVML: {error}"
            return None

    def read(self) -> Taken | None:
        """Raises Unsupported: no device answers any more."""
        before_s, self._at_s = self._at_s, self._clock()
        devices = [self._device(number) for number in range(len(self._handles))]
        if all(self._problems):
            raise Unsupported(self._problems[0])
        if self._at_s <= before_s or math.isinf(before_s):
            return None
        return Taken(before_s, self._at_s, self.period_s, devices)

    def _device(self, number: int) -> Values:
        handle = self._handles[number]
        if handle is None:
            return {}
        try:
            utilization = self._nvml.nvmlDeviceGetUtilizationRates(handle)
        except self._nvml.NVMLError as error:
            self._problems[number] = f"NVML: {error}"
            return {}
        self._problems[number] = ""
        found = {Indicator.GRACT: utilization.gpu / 100, Indicator.DRAMA: utilization.memory / 100}
        found |= {name: self._pcie(handle, counter) for name, counter in PCIE.items()}
        return found | self._nvlink(number)

    def _pcie(self, handle: Any, counter: int) -> float:
        try:
            return 1000.0 * float(self._nvml.nvmlDeviceGetPcieThroughput(handle, counter))
        except self._nvml.NVMLError:
            return math.nan

    def _nvlink(self, number: int) -> Values:
        try:
            fields = self._nvml.nvmlDeviceGetFieldValues(
                self._handles[number], [(field, ALL_LINKS) for field in NVLINK.values()]
            )
        except self._nvml.NVMLError:
            return dict.fromkeys(NVLINK, math.nan)
        counts = {
            name: 1024.0 * field.value.ullVal
            if field.nvmlReturn == 0 and field.valueType == UNSIGNED_LONG_LONG
            else math.nan
            for name, field in zip(NVLINK, fields, strict=True)
        }
        return {name: self._links[number][name].rate(count, self._at_s) for name, count in counts.items()}

    def memory(self) -> list[Memory | None]:
        return [memory_of(self._nvml, handle) if handle is not None else None for handle in self._handles]

    def problems(self) -> list[str]:
        return self._problems

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # The driver may have gone first.
            self._nvml.nvmlShutdown()


def memory_of(pynvml: Any, handle: Any) -> Memory | None:
    """What is in use on a device, whoever uses it."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:
        return None
    return Memory(int(info.used) / MIB, int(info.total) / MIB)
