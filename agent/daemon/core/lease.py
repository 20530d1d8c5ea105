"""How long this host may believe that its jobs are still its own.

Rule: a renewal counts from the moment the heartbeat that it answers was *sent*, so that our lease ends
before the controller's, whatever the network did in between.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

BEATS_REMEMBERED: Final = 4096
STOP_AT: Final = 0.8
"""Supervisors have stopped their ranks when this part of a lease is over; nothing starts after it."""


class Lease:
    def __init__(self) -> None:
        self.known = False
        """A controller has said what the lease is."""
        self.full_s: float | None = None
        self._from_s: float | None = None
        self._sent_s: OrderedDict[int, float] = OrderedDict()

    def granted(self, full_s: float | None) -> None:
        """What `Welcome` says; it renews nothing."""
        self.known, self.full_s = True, full_s

    @property
    def is_counting(self) -> bool:
        """Whether there is anything to pass on: before its first renewal an agent that has just started knows
        less than the supervisors, whose own countdown goes on."""
        return self.known and (self.full_s is None or self._from_s is not None)

    def beat_sent(self, beat: int, now_s: float) -> None:
        self._sent_s[beat] = now_s
        while len(self._sent_s) > BEATS_REMEMBERED:
            self._sent_s.popitem(last=False)

    def renewed(self, beat: int) -> bool:
        """False: not a beat that we know, or a late answer to an older one."""
        sent_s = self._sent_s.get(beat)
        if sent_s is None or (self._from_s is not None and sent_s < self._from_s):
            return False
        self._from_s = sent_s
        return True

    def left_s(self, now_s: float) -> float | None:
        """None: no lease is needed. Check `known` first."""
        if self.full_s is None:
            return None
        return 0.0 if self._from_s is None else max(0.0, self._from_s + self.full_s - now_s)

    def may_start(self, now_s: float) -> bool:
        """Whether a job started now could keep its lease."""
        left_s = self.left_s(now_s)
        return self.known and (left_s is None or self._early_enough(left_s))

    def still_meant(self, beat: int, now_s: float) -> bool:
        """Whether an order of a controller that had heard `beat` can still be obeyed: once that beat's lease
        is over, the controller may have given the job to another host."""
        if self.full_s is None:
            return True
        sent_s = self._sent_s.get(beat)
        return sent_s is not None and self._early_enough(sent_s + self.full_s - now_s)

    def _early_enough(self, left_s: float) -> bool:
        assert self.full_s is not None
        return self.full_s - left_s < STOP_AT * self.full_s
