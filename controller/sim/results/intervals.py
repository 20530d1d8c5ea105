"""A number from several seeds: its mean, and how far the mean may be off.

Rule: seeds are few, so the interval is Student's, not the normal one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

# fmt: off
_T_975: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
"""The 97.5 % quantile of Student's t for 1, 2, ... 30 degrees of freedom."""
_NORMAL_975: Final = 1.96


class ConfidenceInterval(NamedTuple):
    """A mean, and half the width of its 95 % interval (None: from one value nothing can be said)."""

    mean: float
    half: float | None

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)


def interval(values: Sequence[float]) -> ConfidenceInterval:
    """95 %, two-sided, of the mean of independent values.

    Raises:
        ValueError: there are no values.
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value")
    mean = math.fsum(values) / n
    if n == 1:
        return ConfidenceInterval(mean, None)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    quantile = _T_975[n - 2] if n - 2 < len(_T_975) else _NORMAL_975
    return ConfidenceInterval(mean, quantile * spread / math.sqrt(n))
