"""How the time of a step depends on batch, accumulation and the gang: Castor eq. 1 to 3, fitted. Pure.

Rule: a model speaks only of gangs of a reach it was measured on, and every prediction comes with its range.
What was never measured is None, not a guess.

Sources: Castor section 3.1, eq. 1 to 3, as settled for this project; the overlap exponent is that of Pollux
(OSDI 2021). Times in seconds, batch sizes in samples per device.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

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
    """The same value each time: every job is asked for its gang several times, and few differ."""
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
        """Eq. 1: one micro-batch forward and backward."""
        return self.fixed_s + self.per_sample_s * sub_batch

    def sync_s(self, gang: Gang) -> float:
        """Eq. 2, with separate constants for one host and for several."""
        if gang.reach == "device":
            return 0.0
        if gang.reach == "host":
            return self.host_sync_s
        per_host, hosts = math.log2(gang.devices / gang.hosts), math.log2(gang.hosts / 2)
        return self.hosts_sync_s + self.device_growth_s * per_host + self.host_growth_s * hosts

    def step_s(self, batch_size: float, accumulation_steps: int, gang: Gang) -> float:
        """Eq. 3: only the last micro-batch overlaps with the sync."""
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
        """The same with its range: the error seen on steps left out, and what the points leave open there."""
        step_s = self.step_s(batch_size, accumulation_steps, gang)
        if step_s is None:
            return None
        slope = self.coefficients.slope(batch_size, accumulation_steps, gang)
        rows = zip(slope, self.covariance, strict=True)
        open_s2 = sum(by * sum(b * c for b, c in zip(slope, row, strict=True)) for by, row in rows)
        spread = math.sqrt(self.noise**2 + max(0.0, open_s2) / step_s**2)
        factor = math.exp(min(self.width * spread, 50.0))
        return StepTimePrediction(step_s=step_s, low_s=step_s / factor, high_s=step_s * factor)
