"""Where an axis of time has its ticks, and what stands there. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
NICE_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(n * MINUTE_S for n in (1, 2, 5, 10, 30)),
    *(n * HOUR_S for n in (1, 2, 3, 6, 12)),
)
"""Steps that people like to count in."""


def tick_step_s(span_s: float, ticks_max: int = 12) -> int:
    """A step of the axis with at most `ticks_max` steps over the span."""
    whole_days = DAY_S * (1 + int(span_s / DAY_S / ticks_max))
    return next((step for step in NICE_S if span_s / step <= ticks_max), whole_days)


def ticks(end_s: float, local_zero_s: float | None) -> Iterator[tuple[float, str]]:
    """(seconds from the axis's beginning, what stands there); with a clock at its round times."""
    step_s = tick_step_s(end_s)
    first_s = 0.0 if local_zero_s is None else -local_zero_s % step_s
    for number in range(int((end_s - first_s) / step_s) + 1):
        at_s = first_s + number * step_s
        if local_zero_s is None:
            yield at_s, elapsed(at_s, end_s)
        else:
            yield at_s, clock(local_zero_s + at_s, step_s)


def elapsed(at_s: float, end_s: float) -> str:
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h")):
        if end_s > 4 * unit_s:
            return f"{at_s / unit_s:.3g} {unit}"
    return f"{at_s:.0f} s"


def clock(local_s: float, step_s: float) -> str:
    """A date at midnight, and where steps are days."""
    at = datetime.fromtimestamp(round(local_s), UTC)
    if step_s >= DAY_S or round(local_s) % DAY_S == 0:
        return at.strftime("%b %d")
    return at.strftime("%H:%M:%S" if step_s < MINUTE_S else "%H:%M")
