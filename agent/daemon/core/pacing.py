"""Holds co-tenants to their bounds: from step times to when each may train. Pure.

A job's co-tenants on this host are its *guests*. How far they are held back is one number, their *level*,
0 to 1; their ranks wait between micro-batches (`checkpoint/talk/pace.py`):

    1           not at all
    1/2 to 1    micro-batches begin only in a part of the job's step: where it is idle, they cost it nothing
    0 to 1/2    and only so often that guests train for 2 x level of the time

Guests of every job rest now and then, so that its step time alone is known; those of a job with a bound are
held to it. A guest that names a bound itself rests only once for others: later rests would be part of its
minute. The cluster's bound leaves room for them.

    alone    no guest trains: windows of steps tell the job's step time alone
    resting  guests wait for a few steps, so that the step time alone is known, and known anew: at most
             `REST_SHARE` of the time, `DRIFT_REST_SHARE` while it is another each time
    sharing  each window of steps is compared with the step time alone:
                 over the bound           the level falls (below)
                 well within the bound    it rises by PROBE; to where it was over only after `PROBE_AGAIN_S`
                 no bound                 it stays 1

    over the bound after rises               back to where it was known to be within
    over after it was within, or far over    to RETREAT x level, at last to `LEVEL_MIN`
    over ever since it fell                  another place in the step is tried; once all were, RETREAT again
    over at `LEVEL_MIN`, an own bound        to `LEVEL_LEAST`

Over the bound: two of the last three windows are, or one after a rise, or one after a fall is far over, by
twice what the bound allows. Or, where the job, its class or its organisation names the bound, the p99 of
steps is, against that alone. A window counts as its median report, the job's own waits for others left out: a
rare long step is the p99's concern.

Why that settles: at each of the four places in the step the job's ratio rises with the level, so at one of
them there is a highest level that meets the bound. While a level is above that at every place, a few windows
take a third off; below it at one of them, the search ends there, and the level rises to it by small steps,
and beyond it by one at most once in `PROBE_AGAIN_S`, at last every `PROBE_AGAIN_S_MAX`: over a minute the
median and all but a hundredth of the steps are within what is promised. Steps that vary only widen the band
below.

Rule: of two that both have a bound, each is held back only for what it does to the other. Where one then
waits more than its own bound has room for, as where a bound is not kept at `LEVEL_MIN`, for `LOST_S`, it
cannot be kept here: that is said once per pair. A guest that cannot leave goes on at `LEVEL_LEAST`.
Without a step time alone nothing is judged. Guests that cannot wait (nothing counts their steps) are no
guests of a protected job: policies do not put them there (`tenancy.why_alone`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import Final, Literal, NamedTuple

from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.ipc import PaceNow, StepClock
from cotenant.controller.domain import DeviceId
from cotenant.controller.performance import ShareBound, maxima
from cotenant.controller.wire import BoundStanding

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
P99_STEPS_MIN: Final = 100
"""Alone, before their p99 is judged."""
WINDOW_STEPS, WINDOW_S = 4, 0.4
"""A window has at least so many steps, and takes at least so long."""
REST_STEPS, REST_S = 3, 0.15
SETTLE_S: Final = 0.1
"""A guest that was told to wait finishes its micro-batch first."""
REST_S_MAX: Final = 10.0
"""A rest ends then, whatever it has seen."""
REST_SHARE: Final = 0.02
REST_EVERY_S_MIN: Final = 15.0
DRIFT: Final = 0.1
"""A step time alone that differs by more from what was known is one that changes: data or batches do."""
DRIFT_REST_SHARE, DRIFT_REST_EVERY_S_MIN = 0.05, 5.0
ALONE_KEPT: Final = 5
"""The step time alone is the median of so many windows."""
LOST_S: Final = 20.0
MINUTE_S: Final = 60.0
FREE: Final = PaceNow(pace=1.0)


class TrainingTenant(NamedTuple):
    """An attempt that trains here, as of now."""

    key: AttemptKey
    devices: frozenset[DeviceId]
    bound: ShareBound
    clock: StepClock
    can_wait: bool = True
    """Its ranks look at their pace."""
    is_disturbed: bool = False
    """A job loads on one of its devices: neither alone nor beside a training job."""


class LostBound(NamedTuple):
    """The bound of `key` cannot be kept beside `guest`."""

    key: AttemptKey
    guest: AttemptKey
    ratio: float


class StepTimes(NamedTuple):
    """Some steps in a row; seconds, each the median of what was reported."""

    whole_s: float
    step_s: float
    """Without the job's own waits for co-tenants."""


class StepWindow:
    """Gathers what is reported of steps until there are enough."""

    def __init__(self, clock: StepClock) -> None:
        self.begin(clock)

    def begin(self, clock: StepClock) -> None:
        self._mark = self._last = clock
        self._reports: list[StepTimes] = []

    @property
    def began(self) -> StepClock:
        return self._mark

    def read(self, clock: StepClock, steps_min: int, s_min: float) -> tuple[int, StepTimes | None]:
        """Takes in where the clock stands. Returns how many steps are new, and the window once it is long
        enough; then the next one begins."""
        steps, elapsed_s = clock.steps - self._last.steps, clock.elapsed_s - self._last.elapsed_s
        if steps < 0 or elapsed_s < 0.0:  # It began anew.
            self.begin(clock)
        if steps <= 0 or elapsed_s <= 0.0:
            return 0, None
        waited_s = min(elapsed_s, max(0.0, clock.waited_s - self._last.waited_s))
        self._reports.append(StepTimes(elapsed_s / steps, (elapsed_s - waited_s) / steps))
        self._last = clock
        all_steps, all_s = clock.steps - self._mark.steps, clock.elapsed_s - self._mark.elapsed_s
        if (all_steps < steps_min and all_s < 10 * s_min) or all_s < s_min:
            return steps, None
        window = StepTimes(
            median(each.whole_s for each in self._reports), median(each.step_s for each in self._reports)
        )
        self.begin(clock)
        return steps, window


class LongSteps:
    """The longest step of each report, for the p99 of all of them."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, int, float]] = deque(maxlen=600)

    def add(self, now_s: float, steps: int, longest_s: float) -> None:
        if steps > 0:
            self._reports.append((now_s, steps, longest_s))

    def forget_before(self, at_s: float) -> None:
        while self._reports and self._reports[0][0] <= at_s:
            self._reports.popleft()

    def is_enough(self, now_s: float) -> bool:
        """They say what the steps of a minute are like: enough were reported, or for long enough."""
        began_s = self._reports[0][0] if self._reports else now_s
        return self.steps >= P99_STEPS_MIN or now_s - began_s >= MINUTE_S / 2.0

    @property
    def steps(self) -> int:
        return sum(steps for _, steps, _ in self._reports)

    @property
    def p99_s(self) -> float | None:
        """None: fewer than three were reported, or none with its longest step. Two long steps of a few are no
        p99."""
        over = max(2, self.steps // 100)
        longest = sorted((each for _, _, each in self._reports), reverse=True)
        return longest[over] or None if over < len(longest) else None


class MeasuredTenant:
    """What is measured of one job beside its guests, and how far they are held back."""

    def __init__(self, clock: StepClock, now_s: float) -> None:
        self.state: Literal["alone", "resting", "sharing"] = "alone"
        self.share_max = inf
        """The bound that counts beside its present guests."""
        self.rests_again = True
        """False: a guest has a bound, and waits only once to let this job's step time alone be measured."""
        self.is_own = False
        """It was named for this job, and holds for its p99 as well."""
        self._alone: deque[float] = deque(maxlen=ALONE_KEPT)
        self._long_alone, self._long = LongSteps(), LongSteps()
        self._ratios: deque[tuple[float, float]] = deque()
        self._window = StepWindow(clock)
        self._rest_began_s = -inf
        self._guests_wait = False
        """The step that began before the rest is over."""
        self._rest_at_s = now_s
        self._begin_free()

    def _begin_free(self) -> None:
        """Guests are not held back, and nothing is known of what they cost."""
        self.level, self.phase = 1.0, PHASES[0]
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
        self._over_since_s: float | None = None
        self._over_ratio = 1.0
        """By how much, when it was seen that guests cannot be held back far enough."""
        self._is_lost = False

    @property
    def alone_s(self) -> float | None:
        """The step time alone; None: not known yet."""
        return median(self._alone) if self._alone else None

    @property
    def share(self) -> float:
        """The part of the time that guests may train."""
        return min(1.0, self.level / ALIGNED)

    @property
    def _least(self) -> float:
        """How far guests may be held back at most."""
        return LEVEL_LEAST if self.is_own else LEVEL_MIN

    def pace_of_guests(self, key: AttemptKey) -> PaceNow:
        """When the guests of this job, `key`, may train."""
        if self.state == "resting":
            return PaceNow(pace=0.0)
        if self.level >= 1.0 or self.alone_s is None:
            return FREE
        window = max(WINDOW_MIN, (self.level - ALIGNED) / (1.0 - ALIGNED))
        return PaceNow(pace=self.share, window=window, phase=self.phase, beside=key, step_s=self.alone_s)

    def standing(self, now_s: float) -> BoundStanding:
        """How the bound stands over the last minute."""
        ratios = sorted(ratio for at_s, ratio in self._ratios if at_s > now_s - MINUTE_S)
        return BoundStanding(
            share_max=self.share_max if self.share_max != inf else None,
            alone_step_s=self.alone_s,
            ratio_p50=ratios[len(ratios) // 2] if ratios else None,
            ratio_p99=self._p99_ratio if ratios else None,
            guest_pace=self.share,
            guests_in_phase=self.level < 1.0,
        )

    def pause_measuring(self, clock: StepClock) -> None:
        """Steps up to now are not compared: the job itself was paused, or its company has changed."""
        self._window.begin(clock)

    def begin_alone(self, clock: StepClock) -> None:
        self.state = "alone"
        self._begin_free()
        self._long = LongSteps()
        self.pause_measuring(clock)

    def begin_rest(self, clock: StepClock, now_s: float) -> None:
        self.state, self._rest_began_s, self._guests_wait = "resting", now_s, False
        self.pause_measuring(clock)

    def begin_sharing(self, clock: StepClock) -> None:
        self.state = "sharing"
        self.pause_measuring(clock)

    def is_rest_due(self, now_s: float) -> bool:
        return self.alone_s is None or (self.rests_again and now_s >= self._rest_at_s)

    def note_alone(self, clock: StepClock, now_s: float) -> None:
        """No guest trains: takes a window as a step time alone, once it is long enough."""
        steps, window = self._window.read(clock, WINDOW_STEPS, WINDOW_S)
        self._long_alone.add(now_s, steps, clock.longest_s)
        if window is not None:
            self._alone.append(window.step_s)

    def note_rest(self, clock: StepClock, now_s: float) -> bool:
        """Whether the rest is over: it has seen enough steps, or has taken too long."""
        if not self._guests_wait:
            if clock.steps > self._window.began.steps and now_s > self._rest_began_s + SETTLE_S:
                self._guests_wait = True
                self.pause_measuring(clock)
        else:
            steps, window = self._window.read(clock, REST_STEPS, REST_S)
            self._long_alone.add(now_s, steps, clock.longest_s)
            if window is not None:
                drifts = self.alone_s is not None and abs(window.step_s / self.alone_s - 1.0) > DRIFT
                self._alone.append(window.step_s)
                self._plan_rest(now_s, drifts=drifts)
                return True
        if now_s - self._rest_began_s < REST_S_MAX:
            return False
        self._plan_rest(now_s)
        return True

    def note_sharing(self, clock: StepClock, now_s: float) -> float | None:
        """Takes in a window beside guests and sets their level. Returns the ratio if the bound is lost. What
        the job's own waits cost it is no reason to hold its guests back."""
        steps, window = self._window.read(clock, WINDOW_STEPS, WINDOW_S)
        self._long.add(now_s, steps, clock.longest_s)
        self._long.forget_before(now_s - MINUTE_S)
        alone_s = self.alone_s
        if window is None or alone_s is None:
            return None
        whole = window.whole_s / alone_s
        self._ratios.append((now_s, whole))
        while self._ratios[0][0] <= now_s - MINUTE_S:
            self._ratios.popleft()
        p99_over = self._p99_ratio if self._is_p99_over else None
        self._set_level(window.step_s / alone_s, now_s, is_p99_over=p99_over is not None)
        is_least = self.level <= LEVEL_MIN or window.whole_s > window.step_s
        if self.level >= LEVEL_MIN and not (is_least and whole > self.share_max):
            self._over_since_s = None
        elif self._over_since_s is None:
            self._over_since_s, self._over_ratio = now_s, p99_over or whole
        elif now_s - self._over_since_s >= LOST_S and not self._is_lost:
            self._is_lost = True
            return self._over_ratio
        return None

    @property
    def _p99_ratio(self) -> float | None:
        """The p99 of steps over that alone: of the last minute, as far as guests were held back as now.
        None: one of them is not known."""
        alone_s, p99_s = self._long_alone.p99_s, self._long.p99_s
        if alone_s is None or p99_s is None or self._long_alone.steps < P99_STEPS_MIN:
            return None
        return p99_s / alone_s

    @property
    def _is_p99_over(self) -> bool:
        ratio = self._p99_ratio if self.is_own else None
        return ratio is not None and ratio > 1.0 + P99_EXCESS * (self.share_max - 1.0)

    def _set_level(self, ratio: float, now_s: float, *, is_p99_over: bool) -> None:
        """After a window: down if it is over the bound, up if it is well within."""
        excess = self.share_max - 1.0
        self._recent.append(ratio)
        is_over = ratio > self.share_max
        twice = sum(each > self.share_max for each in self._recent) >= 2
        is_far_over = ratio > 1.0 + P99_EXCESS * excess
        if twice or (is_over and self._rose) or (is_far_over and not self._was_within) or is_p99_over:
            elsewhere = not is_far_over and (is_p99_over or not self._was_within)
            self._hold_back(now_s, elsewhere=elsewhere, is_p99_over=is_p99_over)
            return
        self._was_within, self._rose = self._was_within or not is_over, False
        is_known = self._long.is_enough(now_s)
        if is_known:
            self._safe = max(self._safe, self.level)
        if ratio < 1.0 + WITHIN * excess and self.level < 1.0:
            self._raise(now_s, is_known=is_known)

    def _raise(self, now_s: float, *, is_known: bool) -> None:
        """Up by a step. Where it was over before, only after a while; and where long steps count, only once
        enough were seen at this level."""
        higher = min(1.0, self.level + PROBE)
        if higher >= self._over_at:
            if now_s < self._over_until_s or (self.is_own and not is_known):
                return
            self._long = LongSteps()
        self.level, self._rose = higher, True

    def _hold_back(self, now_s: float, *, elsewhere: bool, is_p99_over: bool) -> None:
        """A row of the second table above. elsewhere: another place in the step may do."""
        if self._least <= self._safe < self.level:
            self._lower(self._safe, now_s, again_s=2.0 * self._probe_again_s)
        elif self._rose:
            self._lower(max(self._least, self.level - 2.0 * PROBE), now_s, again_s=2.0 * self._probe_again_s)
        elif elsewhere and self._untried and self.level < 1.0:
            self.phase, self._over_at = self._untried.pop(0), inf
        elif self.level > LEVEL_MIN:
            self._lower(max(LEVEL_MIN, RETREAT * self.level), now_s)
            self._untried = [phase for phase in PHASES if phase != self.phase]
        elif self.level > self._least:
            self._lower(self._least, now_s, again_s=2.0 * self._probe_again_s)
        if is_p99_over and self._over_at < inf:
            self._over_at = self.level  # Long steps are too rare to look for the level in between.
        self._safe = min(self._safe, self.level)
        self._recent.clear()
        self._was_within = self._rose = False
        self._long = LongSteps()  # Those were of guests that were held back less, or elsewhere.

    def _lower(self, level: float, now_s: float, again_s: float = PROBE_AGAIN_S) -> None:
        """Takes the level down; what is above is not tried before its time."""
        self._over_at = self.level if level > self._least else level
        self._over_until_s, self._probe_again_s = now_s + self._probe_again_s, min(again_s, PROBE_AGAIN_S_MAX)
        self.level = level

    def _plan_rest(self, now_s: float, *, drifts: bool = False) -> None:
        took_s = now_s - self._rest_began_s
        every_s, share = (
            (DRIFT_REST_EVERY_S_MIN, DRIFT_REST_SHARE) if drifts else (REST_EVERY_S_MIN, REST_SHARE)
        )
        self._rest_at_s = now_s + max(every_s, took_s / share)


class Pacing:
    """The step times of all jobs on one host, alone and beside others, and their bounds."""

    def __init__(self) -> None:
        self._tenants: dict[AttemptKey, MeasuredTenant] = {}

    def update(
        self, tenants: Sequence[TrainingTenant], now_s: float
    ) -> tuple[dict[AttemptKey, PaceNow], list[LostBound]]:
        """Takes in where all tenants stand; returns when each may train, and bounds that cannot be kept."""
        by_key = {tenant.key: tenant for tenant in tenants}
        for key in self._tenants.keys() - by_key.keys():
            del self._tenants[key]
        guests = {tenant.key: self._measure(tenant, tenants, now_s) for tenant in tenants}
        resting = {key for key, each in self._tenants.items() if each.state == "resting"}
        lost: list[LostBound] = []
        for key, measured in self._tenants.items():
            clock = by_key[key].clock
            if by_key[key].is_disturbed or any(key in guests[other] for other in resting):  # Or it waits.
                measured.pause_measuring(clock)
            elif ratio := self._advance(key, measured, clock, guests[key], now_s, resting):
                lost += [LostBound(key, guest, ratio) for guest in guests[key]]
        return self._find_paces(by_key, guests), lost

    def standing(self, key: AttemptKey, now_s: float) -> BoundStanding | None:
        """How an attempt fares beside others; None: it has trained with none here."""
        measured = self._tenants.get(key)
        return None if measured is None else measured.standing(now_s)

    def _measure(
        self, tenant: TrainingTenant, tenants: Sequence[TrainingTenant], now_s: float
    ) -> tuple[AttemptKey, ...]:
        """The guests of a tenant, all of which can wait; keeps its state."""
        beside = [each for each in tenants if each is not tenant and each.devices & tenant.devices]
        if tenant.key not in self._tenants:
            self._tenants[tenant.key] = MeasuredTenant(tenant.clock, now_s)
        if not all(each.can_wait for each in beside):
            beside = []
        measured = self._tenants[tenant.key]
        measured.share_max = min((maxima(tenant.bound, each.bound)[0] for each in beside), default=inf)
        measured.is_own = tenant.bound.is_own
        measured.rests_again = not any(
            each.bound.is_own and maxima(each.bound, tenant.bound)[0] < inf for each in beside
        )
        return tuple(each.key for each in beside)

    def _advance(
        self,
        key: AttemptKey,
        measured: MeasuredTenant,
        clock: StepClock,
        guests: Sequence[AttemptKey],
        now_s: float,
        resting: set[AttemptKey],
    ) -> float | None:
        """One row of the table above. Returns the ratio if the bound is lost."""
        may_rest = not (resting - {key})
        if not guests:
            if measured.state != "alone":
                measured.begin_alone(clock)
            measured.note_alone(clock, now_s)
        elif measured.state == "resting":
            if measured.note_rest(clock, now_s):
                resting.discard(key)
                measured.begin_sharing(clock)
        elif may_rest and measured.is_rest_due(now_s):
            resting.add(key)
            measured.begin_rest(clock, now_s)
        elif measured.state == "alone":
            measured.begin_sharing(clock)
        else:
            return measured.note_sharing(clock, now_s)
        return None

    def _find_paces(
        self, tenants: Mapping[AttemptKey, TrainingTenant], guests: Mapping[AttemptKey, Sequence[AttemptKey]]
    ) -> dict[AttemptKey, PaceNow]:
        """When each tenant may train: as whoever holds it back most says; one that rests to be measured does
        not wait itself."""
        paces = dict.fromkeys(tenants, FREE)
        for key, measured in self._tenants.items():
            pace = measured.pace_of_guests(key)
            for guest in guests[key]:
                paces[guest] = min(paces[guest], pace, key=lambda each: (each.pace, each.window))
        for key, measured in self._tenants.items():
            if measured.state == "resting":
                paces[key] = FREE
        return paces
