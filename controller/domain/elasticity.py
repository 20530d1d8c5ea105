"""How long the same step takes on more and fewer devices: the curve of one elastic job. Pure.

Rule: a number that was measured is given as it is; what lies between and beyond follows Amdahl's law through
the nearest measured one, and the curve says where its shape comes from.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

CurveSource = Literal["assumed", "like jobs", "seen", "profile"]
"""Nothing is known of it; from jobs of its kind; from its own steps; from `cotenant profile`."""
SERIAL: Final = 0.06
"""Share of a step that more devices do not shorten, of a job of which nothing is known: the median of such
fits to the eleven models that AFS (NSDI '21) has measured, up to 8 devices."""


Measured = tuple[tuple[int, float], ...]
"""Devices, and seconds of the same step on so many; rising."""


class SpeedCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Step times by number of devices."""

    measured: Measured = ()
    """Steps of the whole batch, alone."""
    serial: float = SERIAL
    source: CurveSource = "assumed"
    """Where `serial` comes from; `measured` does not depend on it."""

    def step_s(self, devices: int) -> float:
        """Time of a step on so many devices: in seconds where anything was measured, else relative."""
        if not self.measured:
            return amdahl(self.serial, devices)
        near, step_s = min(self.measured, key=lambda known: (abs(known[0] - devices), known))
        return (
            step_s if near == devices else step_s * amdahl(self.serial, devices) / amdahl(self.serial, near)
        )

    def ratio(self, devices: int, than: int) -> float:
        """A step on so many / one on `than`."""
        return self.step_s(devices) / self.step_s(than)

    def speedup(self, devices: int, than: int) -> float:
        return 1.0 / self.ratio(devices, than)

    def seen(self, devices: int, step_s: float) -> SpeedCurve:
        """The curve with one more step time of the job's own, the newest on so many devices."""
        measured = tuple(sorted({**dict(self.measured), devices: step_s}.items()))
        serial = fitted_serial(measured)
        if serial is None:
            return msgspec.structs.replace(self, measured=measured)
        source: CurveSource = "profile" if self.source == "profile" else "seen"
        return SpeedCurve(measured=measured, serial=serial, source=source)


def amdahl(serial: float, devices: int) -> float:
    """The time of a step, that on one device being 1."""
    return serial + (1.0 - serial) / devices


def fitted_serial(measured: Measured) -> float | None:
    """The share that does not scale, by least squares through `a + c / devices`; None for fewer than two."""
    if len(measured) < 2:
        return None
    points = [(1.0 / devices, step_s) for devices, step_s in measured]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    fixed, scaled = mean_y - slope * mean_x, max(0.0, slope)
    return min(1.0, max(0.0, fixed / (fixed + scaled))) if fixed + scaled > 0.0 else None


def curve_of(profiled: Measured, like: Measured) -> SpeedCurve:
    """The curve of a job that has not run yet: from `cotenant profile`, else from how jobs like it scaled."""
    measured, of_like = fitted_serial(profiled), fitted_serial(like)
    if measured is not None:
        return SpeedCurve(measured=profiled, serial=measured, source="profile")
    if of_like is not None:
        return SpeedCurve(measured=profiled, serial=of_like, source="like jobs")
    return SpeedCurve(measured=profiled)
