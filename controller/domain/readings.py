"""What a host and its devices do just now: for people and for Prometheus, never for decisions."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from cotenant.controller.domain.ids import DeviceId

VALUES_MAX: Final = 64
TEXT_MAX: Final = 400


class ForkServers(msgspec.Struct, frozen=True, kw_only=True):
    """What a host keeps ready for warm starts."""

    count: int = 0
    memory_mib: float = 0.0
    allowed_mib: float = 0.0
    """All of them together never have more."""

    def __post_init__(self) -> None:
        if not all(0 <= each < 1e12 for each in (self.count, self.memory_mib, self.allowed_mib)):
            raise ValueError(f"counts and sizes must not be negative or endless, got {self}")


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one device does just now, for all that use it: for people and for Prometheus, never for decisions.

    Indicators that are not in `values` are missing, and `why` says why. Names that this version does not
    know are kept and not shown.
    """

    device_id: DeviceId
    source: str = ""
    """Of the values: `gpm`, `dcgm`, `exporter`, `nvml` or `cpu`; empty where there are none."""
    values: dict[str, float] = {}
    """By Table 2's names and in its units; the mean over `lasted_s`."""
    lasted_s: float | None = None
    memory_used_mib: float | None = None
    """A GPU: in use, by any process. A CPU slot: the peaks of its present tenants, as far as they are
    known."""
    age_s: float = 0.0
    """Since the end of that time, when this was sent."""
    quiet_s: float = 0.0
    """How long nothing has run on a GPU, as far as its agent has looked."""
    why: str = ""
    """What is missing, and why; on a GPU also which source was chosen for which reason."""

    def __post_init__(self) -> None:
        if len(self.values) > VALUES_MAX or max(map(len, (self.source, self.why, *self.values))) > TEXT_MAX:
            raise ValueError(f"{self.device_id}: a reading of this size is none")
        numbers = (*self.values.values(), self.lasted_s, self.memory_used_mib, self.age_s, self.quiet_s)
        if any(number is not None and not 0.0 <= number < math.inf for number in numbers):
            raise ValueError(f"{self.device_id}: a reading must be finite and not negative")
