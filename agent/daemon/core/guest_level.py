"""How far the guests of one job are held back: from ratios of its step time to a level, and to a place in its
steps. Pure.

The level is one number, 0 to 1; ranks wait between micro-batches (`checkpoint/talk/pace.py`):

    1           not at all
    1/2 to 1    micro-batches begin only in a part of the job's step: where it is idle, they cost it nothing
    0 to 1/2    and only so often that guests train for 2 x level of the time

After each window of the job's steps:

    well within the bound                    up by PROBE; to where it was over only after `PROBE_AGAIN_S`
    over the bound after rises               back to where it was known to be within
    over after it was within, or far over    to RETREAT x level, at last to `LEVEL_MIN`
    over ever since it fell                  another place in the step is tried; once all were, RETREAT again
    over at `LEVEL_MIN`, an own bound        to `LEVEL_LEAST`

Over the bound: two of the last three windows are, or one after a rise, or one after a fall is far over, by
twice what the bound allows. Or, where the job, its class or its organisation names the bound, the p99 of
steps is, against that alone. A window counts as its median report: a rare long step is the p99's concern.

Why that settles: at each of the four places in the step the job's ratio rises with the level, so at one of
them there is a highest level that meets the bound. While a level is above that at every place, a few windows
take a third off; below it at one of them, the search ends there, and the level rises to it by small steps,
and beyond it by one at most once in `PROBE_AGAIN_S`, at last every `PROBE_AGAIN_S_MAX`: over a minute the
median and all but a hundredth of the steps are within what is promised. Steps that vary only widen the band
below.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from cotenant.agent.daemon.core.step_times import LongSteps

LEVEL_MIN: Final = 0.05
"""Guests that must be held back further are none: the bound cannot be kept."""
LEVEL_LEAST: Final = 0.0025
"""Until they have left, they train so little that fewer than a hundredth of the job's steps can meet it; that
is for an own bound."""
RETREAT: Final = 0.7
PROBE: Final = 0.02
PROBE_AGAIN_S, PROBE_AGAIN_S_MAX = 60.0, 600.0
"""A level that was over the bound is tried again after so long; twice as long each time."""
ALIGNED: Final = 0.5
"""Below this level guests are held to a part of the time as well."""
WINDOW_MIN: Final = 0.1
"""Of a step: guests look at it every now and then, and must find it open."""
PHASES: Final = (0.0, 0.25, 0.5, 0.75)
"""Places in the job's step at which guests may begin; the first is where most load their data."""
WITHIN: Final = 0.9
"""The level rises while the ratio has used less than this part of what the bound allows."""
P99_EXCESS: Final = 2.0
"""The p99 of steps may exceed that alone by so many times what the bound allows."""


class GuestLevel:
    """Starts with guests that are not held back, and nothing known of what they cost."""

    def __init__(self) -> None:
        self.level, self.phase = 1.0, PHASES[0]
        self.long_steps = LongSteps()
        """Of the last minute, as far as guests were held back as now."""
        self._untried = list(PHASES[1:])
        """At this level."""
        self._was_within = self._rose = False
        """Since the level or the phase was changed, a window was; with the last window the level rose."""
        self._probe_again_s = PROBE_AGAIN_S
        self._safe = 0.0
        """The highest level since it fell at which enough steps were seen to know their p99."""
        self._recent: deque[float] = deque(maxlen=3)
        self._over_at, self._over_until_s = inf, -inf
        """The level at which it was over, which is not tried again before that time."""

    @property
    def share(self) -> float:
        """The part of the time that guests may train."""
        return min(1.0, self.level / ALIGNED)

    @property
    def window(self) -> float:
        """The part of the job's step in which they may begin."""
        return max(WINDOW_MIN, (self.level - ALIGNED) / (1.0 - ALIGNED))

    def note_window(
        self, ratio: float, share_max: float, now_s: float, *, is_own: bool, p99_ratio: float | None
    ) -> bool:
        """After a window: down if it is over the bound, up if it is well within. Returns whether the p99 is
        over an own bound.

        Args:
            ratio: step time over that alone, of the window.
            p99_ratio: of `long_steps`, over that alone; None: not known.
        """
        excess = share_max - 1.0
        far = 1.0 + P99_EXCESS * excess
        self._recent.append(ratio)
        is_over, is_far_over = ratio > share_max, ratio > far
        is_p99_over = is_own and p99_ratio is not None and p99_ratio > far
        twice = sum(each > share_max for each in self._recent) >= 2
        if twice or (is_over and self._rose) or (is_far_over and not self._was_within) or is_p99_over:
            elsewhere = not is_far_over and (is_p99_over or not self._was_within)
            least = LEVEL_LEAST if is_own else LEVEL_MIN
            self._hold_back(least, now_s, elsewhere=elsewhere, is_p99_over=is_p99_over)
            return is_p99_over
        self._was_within, self._rose = self._was_within or not is_over, False
        is_known = self.long_steps.is_enough(now_s)
        if is_known:
            self._safe = max(self._safe, self.level)
        if ratio < 1.0 + WITHIN * excess and self.level < 1.0:
            self._raise(now_s, may_pass=is_known or not is_own)
        return False

    def _raise(self, now_s: float, *, may_pass: bool) -> None:
        """Up by a step. Where it was over before, only after a while; and where long steps count, only once
        enough were seen at this level (`may_pass`)."""
        higher = min(1.0, self.level + PROBE)
        if higher >= self._over_at:
            if now_s < self._over_until_s or not may_pass:
                return
            self.long_steps = LongSteps()
        self.level, self._rose = higher, True

    def _hold_back(self, least: float, now_s: float, *, elsewhere: bool, is_p99_over: bool) -> None:
        """A row of the table above. elsewhere: another place in the step may do."""
        twice_s = 2.0 * self._probe_again_s
        if least <= self._safe < self.level:
            self._lower(self._safe, least, now_s, again_s=twice_s)
        elif self._rose:
            self._lower(max(least, self.level - 2.0 * PROBE), least, now_s, again_s=twice_s)
        elif elsewhere and self._untried and self.level < 1.0:
            self.phase, self._over_at = self._untried.pop(0), inf
        elif self.level > LEVEL_MIN:
            self._lower(max(LEVEL_MIN, RETREAT * self.level), least, now_s, again_s=PROBE_AGAIN_S)
            self._untried = [phase for phase in PHASES if phase != self.phase]
        elif self.level > least:
            self._lower(least, least, now_s, again_s=twice_s)
        if is_p99_over and self._over_at < inf:
            self._over_at = self.level  # Long steps are too rare to look for the level in between.
        self._safe = min(self._safe, self.level)
        self._recent.clear()
        self._was_within = self._rose = False
        self.long_steps = LongSteps()  # Those were of guests that were held back less, or elsewhere.

    def _lower(self, level: float, least: float, now_s: float, again_s: float) -> None:
        """Takes the level down; what is above is not tried before its time."""
        self._over_at = self.level if level > least else level
        self._over_until_s, self._probe_again_s = now_s + self._probe_again_s, min(again_s, PROBE_AGAIN_S_MAX)
        self.level = level
