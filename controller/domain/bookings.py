"""Devices that are kept for one user's jobs for a time, once or at regular intervals (`cotenant reserve`).

Rule: all times are seconds of the journal, and a day has 86,400 of them whatever the clocks do. In code these
are bookings: a reservation is what a job has whose victims still leave its devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor
from typing import Final

import msgspec

from cotenant.controller.domain.ids import HostId

DAY_S: Final = 86_400.0
WEEK_S: Final = 7 * DAY_S
AHEAD_S: Final = 2 * WEEK_S
"""Bookings that come again every day or week repeat all that two of them do within this time."""
NEAR_S: Final = 0.001
"""Bookings that follow one another may overlap by so much."""


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation as its user asked for it."""

    booking_id: str
    user: str
    gpus: int
    from_s: float
    until_s: float
    every_s: float = 0.0
    """It comes again so long after each beginning; 0: it does not."""
    gpu_type: str = ""
    host_id: HostId = HostId("")
    """Empty: devices of any host."""
    last_s: float | None = None
    """It does not begin again after this; None: it goes on until somebody cancels it."""

    key: str = ""
    """Of the request, so that a repeat makes no other."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"a reservation has at least 1 GPU, got {self.gpus}")
        if not 0.0 <= self.from_s < self.until_s < 1e11:
            raise ValueError(f"a reservation ends after it begins, got {self.from_s} to {self.until_s} s")
        if self.every_s not in (0.0, DAY_S, WEEK_S) or 0.0 < self.every_s < self.length_s:
            raise ValueError("a reservation comes again every day or week, and ends before it does")

    @property
    def length_s(self) -> float:
        return self.until_s - self.from_s

    def begins_between(self, from_s: float, until_s: float) -> Iterator[float]:
        """The beginnings of those of its times that overlap with this one, in order."""
        if not self.every_s:
            if self.from_s < until_s and from_s < self.until_s:
                yield self.from_s
            return
        first = max(0, floor((from_s - self.until_s) / self.every_s) + 1)
        last = ceil((until_s - self.from_s) / self.every_s)
        for number in range(first, last):
            begins_s = self.from_s + number * self.every_s
            if self.last_s is None or begins_s <= self.last_s:
                yield begins_s

    def overlaps(self, other: Booking) -> bool:
        """Whether there is a time that both want."""
        since_s = max(self.from_s, other.from_s)
        mine = self.begins_between(since_s, since_s + AHEAD_S + other.length_s)
        return any(any(True for _ in other.begins_between(at_s, at_s + self.length_s)) for at_s in mine)


def most_at_once(booking: Booking, others: Sequence[Booking]) -> int:
    """The most devices that these have together at a time of the first one."""
    until_s = booking.from_s + AHEAD_S + booking.length_s
    begins_s = {at_s for each in (booking, *others) for at_s in each.begins_between(booking.from_s, until_s)}
    most = 0
    for at_s in {max(at_s, booking.from_s) for at_s in begins_s}:
        now = [
            each
            for each in (booking, *others)
            if any(True for _ in each.begins_between(at_s + NEAR_S, at_s + 2 * NEAR_S))
        ]
        if booking in now:
            most = max(most, sum(each.gpus for each in now))
    return most
