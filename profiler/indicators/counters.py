"""What all sources of GPU counters have in common: a source adds its names and one `read_devices`.

Rule: one value per device, and NaN (or no entry) where there is none. A device that fails costs its own
values only; it keeps its problem until it answers again. Everything here may hang with the driver, so nothing
but `device_child.py` calls it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from cotenant.profiler.driver.facts import NvmlError
from cotenant.profiler.driver.library import Library, handle_of, open_library
from cotenant.profiler.indicators.sources import Indicator, IndicatorValues, SourceName, Taken, Wanted


class Unsupported(Exception):
    """The error of devices that have no such counters, or may not be asked; the text says why."""


class Counters:
    """Counters of some devices. What is wrong with all of them is raised as `Unsupported`."""

    name: SourceName
    about: str
    """For a person, with a place for `period`."""
    offers: tuple[Indicator, ...]
    """All that this source can ever know."""
    gauges: frozenset[Indicator] = frozenset()
    """Values that are not means over the sample's whole time."""
    lacks: str
    """Why another indicator is missing."""
    blank_s: float = 1.0
    """How long a first value may take. A source that is given up is not tried again."""
    blank: str
    """Why it is given up then."""
    apart_s: float = 0.0
    """Samples that are not further apart cannot be compared."""
    period_s: float
    """The shortest that makes sense: 0.1 s, or the source's own minimum."""

    def __init__(self, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._uuids = list(uuids)
        self._clock = clock
        self._at_s = -math.inf
        """When they were read last."""
        self._problems = [""] * len(uuids)

    @classmethod
    def open(cls, wanted: Wanted, uuids: Sequence[str]) -> Self:
        """Raises Unsupported, and then keeps nothing open."""
        raise NotImplementedError

    def read_devices(self, at_s: float) -> list[IndicatorValues] | None:
        """The values of all devices since `_at_s`; None: nothing new. Raises Unsupported."""
        raise NotImplementedError

    def close(self) -> None:
        """There may be nothing to give back."""

    def read(self) -> Taken | None:
        """Since the last time; None: nothing to compare with, or nothing new. Raises Unsupported: no device
        answers any more."""
        at_s = self._clock()
        devices = self.read_devices(at_s)
        if devices is None:
            return None
        before_s, self._at_s = self._at_s, at_s
        if math.isinf(before_s) or at_s - before_s <= self.apart_s:
            return None
        return Taken(before_s, at_s, self.period_s, devices)

    def problems(self) -> list[str]:
        """The reasons, one for each device, why it had no values the last time; empty where it had."""
        return self._problems

    def wait_for_value(self) -> None:
        """Raises Unsupported: there is none within `blank_s`."""
        until_s = time.monotonic() + self.blank_s
        while True:
            taken = self.read()
            if taken is not None and any(not math.isnan(v) for each in taken.devices for v in each.values()):
                return
            if time.monotonic() >= until_s:
                raise Unsupported(next(filter(None, self._problems), self.blank))
            time.sleep(self.period_s)


class DriverCounters(Counters):
    """Counters that NVML is asked for, device by device."""

    def __init__(
        self, nvml: Library, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Closes the library in the end. Raises Unsupported: none of the devices is there and has them."""
        super().__init__(uuids, clock)
        self._nvml = nvml
        self._handles = [self._open_device(number, uuid) for number, uuid in enumerate(uuids)]
        """None for one that is not asked."""
        self._check()

    @classmethod
    def open(cls, wanted: Wanted, uuids: Sequence[str]) -> Self:
        try:
            nvml = open_library()
        except NvmlError as error:
            raise Unsupported(f"NVML: {error.what}") from None
        try:
            return cls(nvml, uuids)
        except Unsupported:
            nvml.close()
            raise

    def prepare(self, number: int, handle: Any) -> None:
        """Makes ready what a device needs. Raises NvmlError, Unsupported: it has no such counters."""

    def read_device(self, number: int, handle: Any, at_s: float) -> IndicatorValues:
        """One device's values since `_at_s`. Raises NvmlError."""
        raise NotImplementedError

    def _open_device(self, number: int, uuid: str) -> Any:
        try:
            handle = handle_of(self._nvml, uuid)
            self.prepare(number, handle)
        except NvmlError as error:
            self._problems[number] = f"NVML: {error.what}"
        except Unsupported as why:
            self._problems[number] = str(why)
        else:
            return handle
        return None

    def _check(self) -> None:
        if all(self._problems):
            raise Unsupported(self._problems[0])

    def read_devices(self, at_s: float) -> list[IndicatorValues]:
        devices: list[IndicatorValues] = []
        for number, handle in enumerate(self._handles):
            devices.append({})
            if handle is None:
                continue
            self._problems[number] = ""
            try:
                devices[-1] = self.read_device(number, handle, at_s)
            except NvmlError as error:
                self._problems[number] = f"NVML: {error.what}"
        self._check()
        return devices

    def close(self) -> None:
        self._nvml.close()


BUSY_PERCENT: Final = 50.0
MOVED_S: Final = 5.0
STUCK: Final = "its counters stay 0 while NVML says that it is busy: restart DCGM's host engine (nvidia-dcgm)"


class Movement:
    """Whether DCGM's counters of a GPU move. After some faults they read 0 whatever the GPU does, until the
    engine is restarted (DCGM's issue 303); one idle moment of a busy GPU is no such case."""

    def __init__(self) -> None:
        self._moved_s = -math.inf

    def is_stuck(self, gract: float, busy_percent: float, at_s: float) -> bool:
        """`busy_percent`: NVML's utilisation, in percent; NaN: unknown."""
        if gract > 0.0:
            self._moved_s = at_s
        return gract == 0.0 and busy_percent > BUSY_PERCENT and at_s - self._moved_s > MOVED_S
