"""What the sources that ask the driver itself share: some devices by UUID, and why one has no values.

Rule: a device that fails keeps its problem until it answers again, and takes nobody with it; only when none
answers there is nothing to read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from cotenant.profiler.driver.failures import NvmlError
from cotenant.profiler.driver.library import Library
from cotenant.profiler.driver.reading import handle_of, memory_mib
from cotenant.profiler.indicators.counters import DeviceMemory, Unsupported


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
            self._failed(number, error)
            return None

    def _failed(self, number: int, error: NvmlError) -> None:
        self._problems[number] = f"NVML: {error.what}"

    def _check(self) -> None:
        """Raises Unsupported: none of them answers."""
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
        return DeviceMemory(float(now.taken_mib), float(now.total_mib))

    def problems(self) -> list[str]:
        return self._problems

    def close(self) -> None:
        self._nvml.close()
