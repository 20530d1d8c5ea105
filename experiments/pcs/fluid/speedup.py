"""How fast a job of the fluid world is on a share of devices.

Rule: others measure a curve of speedups (`sim/speedups.py`); this one only reads it. Between two whole
numbers of devices the pace is linear, and below one device it is that part of one device's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Speedup:
    """The pace on 0, 1, 2 ... devices, over that on one; the last is the most the job can use."""

    __slots__ = ("_worst", "values")

    def __init__(self, values: Sequence[float]) -> None:
        """Creates a speedup curve from `values`, the speedups on 1, 2 ... devices; the first is 1."""
        if not values or values[0] != 1.0 or min(values) <= 0.0:
            raise ValueError(
                f"a speedup begins with 1 on one device and stays above 0, got {list(values[:4])}"
            )
        self.values = (0.0, *values)
        worst: list[float] = []
        for gpus, value in enumerate(values, 1):
            worst.append(max(worst[-1] if worst else -value, -value / gpus))
        self._worst = worst
        """The least efficiency up to so many devices, negative: so it never falls."""

    @property
    def gpus_max(self) -> int:
        return len(self.values) - 1

    def pace_on(self, gpus: float) -> float:
        """The pace on a share of devices, at most `gpus_max`."""
        whole = int(gpus)
        values = self.values
        if whole >= len(values) - 1:
            return values[-1]
        return values[whole] + (gpus - whole) * (values[whole + 1] - values[whole])

    def cap(self, zeta: float) -> int:
        """Devices before the first number on which each does less than `zeta` of what one alone does; at
        least 1."""
        return max(1, bisect_right(self._worst, -zeta))
