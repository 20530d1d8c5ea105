"""Some devices by UUID, as the driver's own sources ask about them: handles, and why one has none.

Rule: a device that fails keeps its problem until it answers again, and takes nobody with it; only when none
answers there is nothing to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cotenant.profiler.counters import Memory, Unsupported
from cotenant.profiler.driver.failures import NvmlError
from cotenant.profiler.driver.library import Library
from cotenant.profiler.driver.reading import handle_of, memory_mib


class DriverDevices:
    def __init__(self, nvml: Library, uuids: Sequence[str]) -> None:
        self._nvml = nvml
        self.problems = [""] * len(uuids)
        """Empty for those that answered the last question."""
        self.handles = [self._open(number, uuid) for number, uuid in enumerate(uuids)]
        """None for one that is not asked."""

    def _open(self, number: int, uuid: str) -> Any:
        try:
            return handle_of(self._nvml, uuid)
        except NvmlError as error:
            self.failed(number, error)
            return None

    def failed(self, number: int, error: NvmlError) -> None:
        self.problems[number] = f"NVML: {error.what}"

    def check(self) -> None:
        """Raises Unsupported: none of them answers."""
        if all(self.problems):
            raise Unsupported(self.problems[0])

    def memory(self) -> list[Memory | None]:
        """What is in use, whoever uses it."""
        return [None if handle is None else self._memory_of(handle) for handle in self.handles]

    def _memory_of(self, handle: Any) -> Memory | None:
        try:
            now = memory_mib(self._nvml, handle)
        except NvmlError:
            return None
        return Memory(float(now.taken_mib), float(now.total_mib))
