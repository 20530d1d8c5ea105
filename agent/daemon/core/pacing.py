"""Holds co-tenants to their bounds: from step times to the pace at which each may train. Pure.

A job's co-tenants on this host are its *guests*. A guest's pace u is the part of the time that it may train:
its ranks wait between micro-batches for (1 - u) / u of the time that they have just worked
(`checkpoint/talk/pace.py`). Guests of every job rest now and then, so that its step time alone is known;
those of a job with a bound are held to it. A guest that names a bound itself rests only once for others:
later rests would be part of its minute. The cluster's bound leaves room for them.

    alone    no guest trains: windows of steps tell the job's step time alone
    resting  guests wait (u = 0) for a few steps, so that the step time alone is known, and known anew:
             at most `REST_SHARE` of the time, `DRIFT_REST_SHARE` while it is another each time
    sharing  each window of steps is compared with the step time alone:
                 over the bound           u falls to RETREAT * u, not below `PACE_MIN`
                 well within the bound    u rises by PROBE
                 no bound                 u stays 1

Why that settles: the job's ratio rises with u, so there is one u* at which it meets the bound. Above u* each
window takes a third off, below it each adds a little; so u stays between RETREAT * u* and u* + PROBE, and is
above u* in at most one window of (1 - RETREAT) u* / PROBE: the median of a minute is within the bound. Steps
that vary only widen the band below u*.

Rule: of two that both have a bound, each is held back only for what it does to the other. Where one then
waits more than its own bound has room for, as where a bound is not kept at `PACE_MIN`, for `LOST_S`, it
cannot be kept here: that is said once per pair.
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
from cotenant.agent.ipc import StepClock
from cotenant.controller.domain import DeviceId
from cotenant.controller.performance import ShareBound, maxima
from cotenant.controller.wire import BoundStanding

PACE_MIN: Final = 0.1
RETREAT: Final = 0.7
PROBE: Final = 0.03
WITHIN: Final = 0.9
"""A guest's pace rises while the ratio has used less than this part of what the bound allows."""
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


class MeasuredTenant:
    """What is measured of one job beside its guests, and the pace that it leaves them."""

    def __init__(self, clock: StepClock, now_s: float) -> None:
        self.state: Literal["alone", "resting", "sharing"] = "alone"
        self.pace = 1.0
        """At which its guests may train."""
        self.share_max = inf
        """The bound that counts beside its present guests."""
        self.rests_again = True
        """False: a guest has a bound, and waits only once to let this job's step time alone be measured."""
        self._alone: deque[float] = deque(maxlen=ALONE_KEPT)
        self._ratios: deque[tuple[float, float]] = deque()
        self._mark = clock
        self._rest_began_s = -inf
        self._guests_wait = False
        """The step that began before the rest is over."""
        self._rest_at_s = now_s
        self._over_since_s: float | None = None
        self._is_lost = False

    @property
    def alone_s(self) -> float | None:
        """The step time alone; None: not known yet."""
        return median(self._alone) if self._alone else None

    def standing(self, now_s: float) -> BoundStanding:
        """How the bound stands over the last minute."""
        ratios = sorted(ratio for at_s, ratio in self._ratios if at_s > now_s - MINUTE_S)
        return BoundStanding(
            share_max=self.share_max if self.share_max != inf else None,
            alone_step_s=self.alone_s,
            ratio_p50=ratios[len(ratios) // 2] if ratios else None,
            ratio_p99=ratios[min(len(ratios) - 1, int(0.99 * len(ratios)))] if ratios else None,
            guest_pace=self.pace,
        )

    def pause_measuring(self, clock: StepClock) -> None:
        """Steps up to now are not compared: the job itself was paused, or its company has changed."""
        self._mark = clock

    def begin_alone(self, clock: StepClock) -> None:
        self.state, self.pace, self._over_since_s, self._is_lost = "alone", 1.0, None, False
        self.pause_measuring(clock)

    def begin_rest(self, clock: StepClock, now_s: float) -> None:
        self.state, self._rest_began_s, self._guests_wait = "resting", now_s, False
        self.pause_measuring(clock)

    def begin_sharing(self, clock: StepClock) -> None:
        self.state = "sharing"
        self.pause_measuring(clock)

    def is_rest_due(self, now_s: float) -> bool:
        return self.alone_s is None or (self.rests_again and now_s >= self._rest_at_s)

    def note_alone(self, clock: StepClock) -> None:
        """No guest trains: takes a window as a step time alone, once it is long enough."""
        step_s = self._window(clock, WINDOW_STEPS, WINDOW_S)
        if step_s is not None:
            self._alone.append(step_s)

    def note_rest(self, clock: StepClock, now_s: float) -> bool:
        """Whether the rest is over: it has seen enough steps, or has taken too long."""
        if not self._guests_wait:
            if clock.steps > self._mark.steps and now_s > self._rest_began_s + SETTLE_S:
                self._guests_wait = True
                self.pause_measuring(clock)
        else:
            step_s = self._window(clock, REST_STEPS, REST_S)
            if step_s is not None:
                drifts = self.alone_s is not None and abs(step_s / self.alone_s - 1.0) > DRIFT
                self._alone.append(step_s)
                self._plan_rest(now_s, drifts=drifts)
                return True
        if now_s - self._rest_began_s < REST_S_MAX:
            return False
        self._plan_rest(now_s)
        return True

    def note_sharing(self, clock: StepClock, own_pace: float, now_s: float) -> float | None:
        """Takes in a window beside guests and sets their pace. Returns the ratio if the bound is lost. What
        the job's own waits cost it (`own_pace`) is no reason to hold its guests back."""
        step_s, alone_s = self._window(clock, WINDOW_STEPS, WINDOW_S), self.alone_s
        if step_s is None or alone_s is None:
            return None
        ratio = step_s / alone_s
        self._ratios.append((now_s, ratio))
        while self._ratios[0][0] <= now_s - MINUTE_S:
            self._ratios.popleft()
        can_do_nothing = self.pace <= PACE_MIN or own_pace < 1.0
        if ratio * own_pace > self.share_max:
            self.pace = max(PACE_MIN, RETREAT * self.pace)
        elif ratio * own_pace < 1.0 + WITHIN * (self.share_max - 1.0):
            self.pace = min(1.0, self.pace + PROBE)
        if ratio <= self.share_max or not can_do_nothing:
            self._over_since_s = None
        elif self._over_since_s is None:
            self._over_since_s = now_s
        elif now_s - self._over_since_s >= LOST_S and not self._is_lost:
            self._is_lost = True
            return ratio
        return None

    def _window(self, clock: StepClock, steps_min: int, s_min: float) -> float | None:
        """The mean step time since the mark, once the window is long enough; then the next one begins."""
        steps, elapsed_s = clock.steps - self._mark.steps, clock.elapsed_s - self._mark.elapsed_s
        if steps < 0 or elapsed_s < 0.0:  # It began anew.
            self.pause_measuring(clock)
            return None
        if steps < 1 or (steps < steps_min and elapsed_s < 10 * s_min) or elapsed_s < s_min:
            return None
        self.pause_measuring(clock)
        return elapsed_s / steps

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
        self._paces: dict[AttemptKey, float] = {}

    def update(
        self, tenants: Sequence[TrainingTenant], now_s: float
    ) -> tuple[dict[AttemptKey, float], list[LostBound]]:
        """Takes in where all tenants stand; returns the pace of each, and the bounds that cannot be kept."""
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
        self._paces = self._find_paces(by_key, guests)
        return self._paces, lost

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
            measured.note_alone(clock)
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
            return measured.note_sharing(clock, self._paces.get(key, 1.0), now_s)
        return None

    def _find_paces(
        self, tenants: Mapping[AttemptKey, TrainingTenant], guests: Mapping[AttemptKey, Sequence[AttemptKey]]
    ) -> dict[AttemptKey, float]:
        """The pace of each tenant: the least that anybody leaves it; one that rests to be measured does not
        wait itself."""
        paces = dict.fromkeys(tenants, 1.0)
        for key, measured in self._tenants.items():
            pace = 0.0 if measured.state == "resting" else measured.pace
            for guest in guests[key]:
                paces[guest] = min(paces[guest], pace)
        for key, measured in self._tenants.items():
            if measured.state == "resting":
                paces[key] = 1.0
        return paces
