"""What clocks show at an instant, and when they first show a time. Pure: a table says when they change.

Rule: a time that the clocks skip is the first instant after the gap, and of a time that they show twice the
first one counts: nothing ever begins before the time that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

LOOK_S: Final = 6 * 3600
"""No clocks change twice within it."""


class ClockChange(NamedTuple):
    """From an instant on clocks are so far ahead of UTC, until the next change."""

    at_s: float
    east_s: float


def first_showing(local_s: float, changes: Sequence[ClockChange]) -> float:
    """The first instant at which the clocks show this time (in seconds, as if it were UTC) or a later one.
    `changes`: in order; the first is in force before as well."""
    for each, following in zip(changes, (*changes[1:], None), strict=True):
        at_s = local_s - each.east_s
        if each is not changes[0]:
            at_s = max(each.at_s, at_s)
        if following is None or at_s < following.at_s:
            return at_s
    raise AssertionError("there are no clocks")


def changes_between(from_s: int, until_s: int, east_s: Callable[[float], float]) -> tuple[ClockChange, ...]:
    """The changes of clocks of which `east_s` says how far they are ahead of UTC at an instant."""
    found = [ClockChange(from_s, east_s(from_s))]
    for since_s in range(from_s, until_s, LOOK_S):
        low_s, high_s = since_s, since_s + LOOK_S
        if (new_s := east_s(high_s)) == found[-1].east_s:
            continue
        while high_s - low_s > 1:
            middle_s = (low_s + high_s) // 2
            low_s, high_s = (low_s, middle_s) if east_s(middle_s) == new_s else (middle_s, high_s)
        found.append(ClockChange(high_s, new_s))
    return tuple(found)
