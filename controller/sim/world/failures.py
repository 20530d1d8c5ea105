"""When hosts fail and come back.

Rule: failures are drawn from the seed alone, host by host, each from its own stream: the same hosts fail at
the same times whatever the policy does, so that a comparison gives all policies the same failures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

STREAM: Final = 0xFA11
"""Keeps these draws apart from every other use of the same seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failures:
    """Each host fails after an exponential time of this mean, and is back after a fixed repair."""

    mean_between_s: float
    """Mean time between the end of a repair and the next failure of that host."""
    repair_s: float = 600.0

    def __post_init__(self) -> None:
        if not (self.mean_between_s > 0.0 and self.repair_s > 0.0):
            raise ValueError(f"times between failures and repairs must be positive, got {self}")

    def times(self, hosts: int, seed: int) -> FailureTimes:
        return FailureTimes(self, hosts, seed)


class FailureTimes:
    """Draws how long each host works until its next failure."""

    def __init__(self, failures: Failures, hosts: int, seed: int) -> None:
        self.repair_s = failures.repair_s
        self._mean_s = failures.mean_between_s
        self._streams = [
            np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM, host)))
            for host in range(hosts)
        ]

    def next_s(self, host: int) -> float:
        """Seconds from now to this host's next failure."""
        return float(self._streams[host].exponential(self._mean_s))
