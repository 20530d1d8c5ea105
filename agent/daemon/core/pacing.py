"""Holds co-tenants to their bounds: from step times to when each may train. Pure.

A job's co-tenants on this host are its *guests*. They rest now and then, so that its step time alone is
known; those of a job with a bound are held to it. A guest that names a bound itself rests only once for
others: later rests would be part of its minute. The cluster's bound leaves room for them.

    alone    no guest trains: windows of steps tell the job's step time alone
    resting  guests wait for a few steps, so that the step time alone is known, and known anew: at most
             `REST_SHARE` of the time, `DRIFT_REST_SHARE` while it is another each time
    sharing  each window of steps is compared with the step time alone, and guests are held back as far as
             that asks (`guest_level.py`); the job's own waits for others are no reason to

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

from cotenant.agent.daemon.core.guest_level import LEVEL_MIN, GuestLevel
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.daemon.core.step_times import MINUTE_S, P99_STEPS_MIN, LongSteps, StepWindow
from cotenant.agent.ipc.channel import PaceNow
from cotenant.agent.ipc.records import StepClock
from cotenant.controller import domain, performance, wire

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
FREE: Final = PaceNow(pace=1.0)


class TrainingTenant(NamedTuple):
    """An attempt that trains here, as of now."""

    key: AttemptKey
    devices: frozenset[domain.DeviceId]
    bound: performance.ShareBound
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
        self._long_alone = LongSteps()
        self._ratios: deque[tuple[float, float]] = deque()
        self._window = StepWindow(clock)
        self._rest_began_s = -inf
        self._guests_wait = False
        """The step that began before the rest is over."""
        self._rest_at_s = now_s
        self._begin_free()

    def _begin_free(self) -> None:
        """Guests are not held back, and nothing is known of what they cost."""
        self.guests = GuestLevel()
        self._over_since_s: float | None = None
        self._over_ratio = 1.0
        """By how much, when it was seen that guests cannot be held back far enough."""
        self._is_lost = False

    @property
    def alone_s(self) -> float | None:
        """The step time alone; None: not known yet."""
        return median(self._alone) if self._alone else None

    def pace_of_guests(self, key: AttemptKey) -> PaceNow:
        """When the guests of this job, `key`, may train."""
        if self.state == "resting":
            return PaceNow(pace=0.0)
        held = self.guests
        if held.level >= 1.0 or self.alone_s is None:
            return FREE
        return PaceNow(pace=held.share, window=held.window, phase=held.phase, beside=key, step_s=self.alone_s)

    def standing(self, now_s: float) -> wire.BoundStanding:
        """How the bound stands over the last minute."""
        ratios = sorted(ratio for at_s, ratio in self._ratios if at_s > now_s - MINUTE_S)
        return wire.BoundStanding(
            share_max=self.share_max if self.share_max != inf else None,
            alone_step_s=self.alone_s,
            ratio_p50=ratios[len(ratios) // 2] if ratios else None,
            ratio_p99=self._p99_ratio if ratios else None,
            guest_pace=self.guests.share,
            guests_in_phase=self.guests.level < 1.0,
        )

    def pause_measuring(self, clock: StepClock) -> None:
        """Steps up to now are not compared: the job itself was paused, or its company has changed."""
        self._window.begin(clock)

    def begin_alone(self, clock: StepClock) -> None:
        self.state = "alone"
        self._begin_free()
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
        self.guests.long_steps.add(now_s, steps, clock.longest_s)
        self.guests.long_steps.forget_before(now_s - MINUTE_S)
        alone_s = self.alone_s
        if window is None or alone_s is None:
            return None
        whole = window.whole_s / alone_s
        self._ratios.append((now_s, whole))
        while self._ratios[0][0] <= now_s - MINUTE_S:
            self._ratios.popleft()
        p99 = self._p99_ratio
        is_p99_over = self.guests.note_window(
            window.step_s / alone_s, self.share_max, now_s, is_own=self.is_own, p99_ratio=p99
        )
        level = self.guests.level
        is_least = level <= LEVEL_MIN or window.whole_s > window.step_s
        if level >= LEVEL_MIN and not (is_least and whole > self.share_max):
            self._over_since_s = None
        elif self._over_since_s is None:
            self._over_since_s = now_s
            self._over_ratio = p99 if is_p99_over and p99 is not None else whole
        elif now_s - self._over_since_s >= LOST_S and not self._is_lost:
            self._is_lost = True
            return self._over_ratio
        return None

    @property
    def _p99_ratio(self) -> float | None:
        """The p99 of steps over that alone: of the last minute, as far as guests were held back as now.
        None: one of them is not known."""
        alone_s, p99_s = self._long_alone.p99_s, self.guests.long_steps.p99_s
        if alone_s is None or p99_s is None or self._long_alone.steps < P99_STEPS_MIN:
            return None
        return p99_s / alone_s

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

    def standing(self, key: AttemptKey, now_s: float) -> wire.BoundStanding | None:
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
        measured.share_max = min(
            (performance.maxima(tenant.bound, each.bound)[0] for each in beside), default=inf
        )
        measured.is_own = tenant.bound.is_own
        measured.rests_again = not any(
            each.bound.is_own and performance.maxima(each.bound, tenant.bound)[0] < inf for each in beside
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
