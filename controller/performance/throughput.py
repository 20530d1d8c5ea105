"""How the time of a step depends on batch, accumulation and the gang: Castor eq. 1 to 3, fitted; and the
curve of one elastic job over numbers of devices. Pure.

Rule: a model speaks only of gangs of a reach it was measured on, and every prediction comes with its range.
What was never measured is None, not a guess. Of a curve, a number that was measured is given as it is; what
lies between and beyond follows Amdahl's law through the nearest measured one, and the curve says where its
shape comes from.

Sources: Castor section 3.1, eq. 1 to 3, as settled for this project; the overlap exponent is that of Pollux
(OSDI 2021). Times in seconds, batch sizes in samples per device.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, Literal

import msgspec

Reach = Literal["device", "host", "hosts"]
"""What a gang's gradients must cross: nothing, the inside of one host, the network."""

OVERLAP = 2.5
"""The exponent delta where the points do not say: 1 is no overlap of compute and sync, large is all of it."""


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices a job runs on, and over how many hosts."""

    devices: int = 1
    hosts: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= self.devices:
            raise ValueError(f"a gang has at least one device on each of its hosts, got {self}")

    @property
    def reach(self) -> Reach:
        if self.devices == 1:
            return "device"
        return "host" if self.hosts == 1 else "hosts"


@lru_cache(maxsize=1024)
def sized_gang(devices: int, hosts: int) -> Gang:
    """Returns the gang of this size, the same value each time: every job is asked for its gang several times,
    and few differ."""
    return Gang(devices=devices, hosts=hosts)


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """The measured time of one optimizer step."""

    batch_size: float
    """Samples per device and step, all micro-batches together."""
    accumulation_steps: int = 1
    gang: Gang = Gang()
    step_s: float

    def __post_init__(self) -> None:
        if not (0 < self.batch_size < math.inf and 0 < self.step_s < math.inf):
            raise ValueError(f"batch size and step time must be positive and finite, got {self}")
        if self.accumulation_steps < 1:
            raise ValueError(f"accumulation steps must be at least 1, got {self}")

    @property
    def sub_batch(self) -> float:
        return self.batch_size / self.accumulation_steps


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """The law's seven numbers; none is negative. The paper's names in brackets."""

    fixed_s: float
    """Of each micro-batch (alpha_comp)."""
    per_sample_s: float
    """(beta_comp)"""
    host_sync_s: float = 0.0
    """Gradient sync inside one host (alpha_comm + beta_comm * M: a job's M does not change)."""
    hosts_sync_s: float = 0.0
    """Gradient sync over two hosts with one device each."""
    device_growth_s: float = 0.0
    """What each doubling of the devices per host adds to a sync over hosts."""
    host_growth_s: float = 0.0
    """What each doubling of the hosts beyond two adds to it."""
    overlap: float = OVERLAP
    """(delta), at least 1."""

    def compute_s(self, sub_batch: float) -> float:
        """The time of one micro-batch forward and backward (eq. 1)."""
        return self.fixed_s + self.per_sample_s * sub_batch

    def sync_s(self, gang: Gang) -> float:
        """The time of a sync (eq. 2), with separate constants for one host and for several."""
        if gang.reach == "device":
            return 0.0
        if gang.reach == "host":
            return self.host_sync_s
        per_host, hosts = math.log2(gang.devices / gang.hosts), math.log2(gang.hosts / 2)
        return self.hosts_sync_s + self.device_growth_s * per_host + self.host_growth_s * hosts

    def step_s(self, batch_size: float, accumulation_steps: int, gang: Gang) -> float:
        """The time of a step (eq. 3): only the last micro-batch overlaps with the sync."""
        compute_s = self.compute_s(batch_size / accumulation_steps)
        last_s = overlapped_s(compute_s, self.sync_s(gang), self.overlap)
        return (accumulation_steps - 1) * compute_s + last_s

    def slope(self, batch_size: float, accumulation_steps: int, gang: Gang) -> tuple[float, ...]:
        """The derivatives of `step_s` by each of the seven, in the order of the fields."""
        sub_batch, delta = batch_size / accumulation_steps, self.overlap
        compute_s, sync_s = self.compute_s(sub_batch), self.sync_s(gang)
        last_s = overlapped_s(compute_s, sync_s, delta)
        if last_s <= 0.0:
            return (float(accumulation_steps), batch_size, 0.0, 0.0, 0.0, 0.0, 0.0)
        of_compute, of_sync = compute_s / last_s, sync_s / last_s
        by_compute = accumulation_steps - 1 + of_compute ** (delta - 1)
        by_sync = of_sync ** (delta - 1) if sync_s > 0.0 or delta == 1.0 else 0.0
        inside, across = gang.reach == "host", gang.reach == "hosts"
        return (
            by_compute,
            by_compute * sub_batch,
            by_sync if inside else 0.0,
            by_sync if across else 0.0,
            by_sync * math.log2(gang.devices / gang.hosts) if across else 0.0,
            by_sync * math.log2(gang.hosts / 2) if across else 0.0,
            last_s / delta * (_power_log(of_compute, delta) + _power_log(of_sync, delta)),
        )


def overlapped_s(compute_s: float, sync_s: float, overlap: float) -> float:
    """`(compute^d + sync^d)^(1/d)`: their sum at d = 1, the longer of the two as d grows."""
    longer, shorter = max(compute_s, sync_s), min(compute_s, sync_s)
    if shorter <= 0.0:
        return longer
    return float(longer * (1.0 + (shorter / longer) ** overlap) ** (1.0 / overlap))


def _power_log(x: float, power: float) -> float:
    return x**power * math.log(x) if x > 0.0 else 0.0


class StepTimePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A step time, and the range into which a measurement should fall at least four times out of five."""

    step_s: float
    low_s: float
    high_s: float


class ThroughputModel(msgspec.Struct, frozen=True, kw_only=True):
    """The law as fitted to one job's measured steps, with what is known of its error."""

    coefficients: Coefficients
    reaches: tuple[Reach, ...]
    """Those it was measured on, more than once: it knows nothing of others."""
    error_ratio: float
    """Mean |predicted - measured| / measured over measured steps, each predicted without its own kind."""
    noise: float
    """Root mean square of the logarithm of predicted / measured, likewise."""
    covariance: tuple[tuple[float, ...], ...]
    """Of the seven coefficients: how far the points leave them open."""
    width: float
    """How many standard deviations the range of four in five takes to each side."""
    steps: int
    """How many measured steps stand behind it."""

    def knows(self, gang: Gang) -> bool:
        return gang.reach in self.reaches

    def step_s(self, batch_size: float, accumulation_steps: int, gang: Gang) -> float | None:
        """Seconds of an optimizer step alone, or None for a gang over as many hosts and devices as none that
        was measured."""
        if not self.knows(gang):
            return None
        return self.coefficients.step_s(batch_size, accumulation_steps, gang)

    def predict(self, batch_size: float, accumulation_steps: int, gang: Gang) -> StepTimePrediction | None:
        """Predicts the step time with its range: the error seen on steps left out, and what the points leave
        open there."""
        step_s = self.step_s(batch_size, accumulation_steps, gang)
        if step_s is None:
            return None
        slope = self.coefficients.slope(batch_size, accumulation_steps, gang)
        rows = zip(slope, self.covariance, strict=True)
        open_s2 = sum(by * sum(b * c for b, c in zip(slope, row, strict=True)) for by, row in rows)
        spread = math.sqrt(self.noise**2 + max(0.0, open_s2) / step_s**2)
        factor = math.exp(min(self.width * spread, 50.0))
        return StepTimePrediction(step_s=step_s, low_s=step_s / factor, high_s=step_s * factor)


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

    def add_seen(self, devices: int, step_s: float) -> SpeedCurve:
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
