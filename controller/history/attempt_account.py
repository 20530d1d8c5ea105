"""What one attempt had of its devices while it loaded, trained beside others and left. Pure.

Rule: a second of a device is divided equally among the jobs that hold it, whatever they do there, and of a
divided device each has its part; so the shares of all attempts together are at most the time in which devices
were held, and no second counts twice. Steps are counted, never inferred from a pace: those between two
reports are divided by the time, weighted with the pace that was expected then. What follows the last count of
an attempt that came to no orderly end is not known, and is left out with its time.

Rule: a field that is added has a default: snapshots hold these records.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from cotenant.controller import domain
from cotenant.controller.performance import XiSource

SPELLS_KEPT = 60
"""Sets of co-tenants kept per attempt; the rest goes into one spell beside `OTHERS`."""
UNCOUNTED_MAX = 200
"""Changes between two reports of steps; after more of them nothing is known until the next report."""
OTHERS = (domain.JobId("others"),)

Activity = Literal["loads", "trains", "leaves"]


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast for a pair when it was made: step time beside the other / alone."""

    beside: domain.JobId
    xi: float
    source: XiSource
    margin: float | None = None
    """Half the width of a prediction's interval; None without a model."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy expected of placing this attempt beside a job: average of the two ends, from then."""

    beside: domain.JobId
    shared_s: float
    sequential_s: float
    """The same if one runs after the other."""


class Spell(msgspec.Struct, kw_only=True):
    """All the time an attempt trained beside the same others."""

    beside: tuple[domain.JobId, ...]
    """Those that trained on a device of it, by number."""
    from_s: float
    to_s: float
    seconds: float = 0.0
    """Time in the spell; there may be gaps between `from_s` and `to_s`."""
    device_s: float = 0.0
    """Its share of its devices' time."""
    steps: float = 0.0


class HeldSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which nothing changed about the devices of an attempt."""

    doing: Activity
    from_s: float
    to_s: float
    beside: tuple[domain.JobId, ...] = ()
    pace: float = 1.0
    """Expected steps per second, relative to the attempt's other spans."""
    share: float = 0.0
    """Number of devices, each divided by the number of jobs that held it; for a part of a device, the
    part."""

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s


class IdleHeld(msgspec.Struct, kw_only=True):
    """A time in which the attempt held its devices idle, from its last activity to its next."""

    from_s: float
    to_s: float | None = None
    """None: it goes on."""
    device_s: float = 0.0
    """The attempt's share of its devices' time, as far as its spans have been counted."""


class AttemptAccount(msgspec.Struct, kw_only=True):
    """What one attempt had of its devices, updated while it goes on."""

    load_device_s: float = 0.0
    leave_device_s: float = 0.0
    """From the request to stop until its devices were free."""
    train_device_s: float = 0.0
    """All its training, including what is in no spell."""
    spells: list[Spell] = []
    forecasts: list[Foretold] = []
    promise: Promise | None = None
    idle: list[IdleHeld] = []
    now: HeldSpan | None = None
    """The span that goes on; None: the attempt is over."""
    uncounted: list[HeldSpan] = []
    """Spans of training since the last count of steps."""
    step: int | None = None
    """The step at that count; None: there was none, or none that can be relied on."""

    def turn(self, now_s: float, next_: HeldSpan | None) -> None:
        """Ends the present span and begins `next_`."""
        before, self.now = self.now, next_
        if before is None:
            return
        piece = msgspec.structs.replace(before, to_s=now_s)
        held_s = piece.seconds * piece.share
        if (idle := self.idle_now) is not None:
            idle.device_s += (now_s - max(idle.from_s, piece.from_s)) * piece.share
        if piece.doing == "loads":
            self.load_device_s += held_s
        elif piece.doing == "leaves":
            self.leave_device_s += held_s
        else:
            self.train_device_s += held_s
            if self.step is not None and piece.seconds > 0.0:
                self.uncounted.append(piece)
        if len(self.uncounted) > UNCOUNTED_MAX:
            self.step, self.uncounted = None, []

    @property
    def idle_now(self) -> IdleHeld | None:
        """The time in which it holds its devices idle, if that goes on."""
        return self.idle[-1] if self.idle and self.idle[-1].to_s is None else None

    def note_idle(self, now_s: float, since_s: float | None) -> None:
        """The attempt has held its devices idle since then; None: until now."""
        self._begin_span(now_s)
        if self.idle_now is not None:
            self.idle_now.to_s = now_s if since_s is None else None
        elif since_s is not None:
            share = self.now.share if self.now is not None else 0.0
            self.idle.append(IdleHeld(from_s=since_s, device_s=(now_s - since_s) * share))
            if len(self.idle) > SPELLS_KEPT:
                first, second = self.idle[:2]
                second.from_s, second.device_s = first.from_s, first.device_s + second.device_s
                del self.idle[0]

    def worked_until(self, now_s: float) -> None:
        """Counts the time until now as work: no step of the attempt was seen."""
        self._begin_span(now_s)
        self.train_device_s += self.load_device_s
        self.load_device_s = 0.0

    def loaded_until(self, now_s: float) -> None:
        """Counts the time until now as loading: the attempt's first step comes only now, and had been assumed
        earlier: what counted as training was its load."""
        self._begin_span(now_s)
        self.load_device_s += self.train_device_s
        self.train_device_s, self.spells = 0.0, []
        self.step, self.uncounted = None, []

    def loaded_beside(self, other: domain.JobId, since_s: float, now_s: float) -> None:
        """The other job loaded all the time since then: that was no training beside it."""
        self._begin_span(now_s)
        self.uncounted = [_apart(other, since_s, piece) for piece in self.uncounted]
        spells = [_apart(other, since_s, spell) for spell in self.spells]
        self.spells = [spell for spell in spells if spell.beside]

    def count(self, now_s: float, step: int) -> None:
        """The attempt has reached this step by now."""
        self._begin_span(now_s)
        if self.step is not None and step >= self.step:
            self._divide(step - self.step)
        self.step, self.uncounted = step, []

    def _begin_span(self, now_s: float) -> None:
        """The present span goes on as a new one."""
        if self.now is not None:
            self.turn(now_s, msgspec.structs.replace(self.now, from_s=now_s, to_s=now_s))

    def end(self, now_s: float, step: int | None) -> None:
        """Ends the account: the attempt's devices are free. `step`: the last one, where the attempt came to
        an orderly end. What was counted beyond the end, while nobody knew of it, is taken back."""
        if self.now is not None and self.now.from_s > now_s:
            beyond_s = (self.now.from_s - now_s) * self.now.share
            from_train_s = min(beyond_s, self.train_device_s) if self.now.doing != "trains" else 0.0
            from_load_s = min(beyond_s - from_train_s, self.load_device_s)
            self.load_device_s -= from_load_s
            self.train_device_s = max(0.0, self.train_device_s - (beyond_s - from_load_s))
            self.now = msgspec.structs.replace(self.now, from_s=now_s)
        self.turn(now_s, None)
        if self.idle_now is not None:
            self.idle_now.to_s = now_s
        if step is not None and self.step is not None and step > self.step:
            self._divide(step - self.step)
        self.step, self.uncounted = None, []

    def _divide(self, steps: int) -> None:
        weights = [piece.seconds * piece.pace for piece in self.uncounted]
        total = sum(weights)
        if total <= 0.0:
            return
        for piece, weight in zip(self.uncounted, weights, strict=True):
            if piece.beside:
                self._spell(piece, steps * weight / total)

    def _spell(self, piece: HeldSpan, steps: float) -> None:
        known = next((spell for spell in self.spells if spell.beside == piece.beside), None)
        if known is None:
            beside = piece.beside if len(self.spells) < SPELLS_KEPT else OTHERS
            known = next((spell for spell in self.spells if spell.beside == beside), None)
            if known is None:
                known = Spell(beside=beside, from_s=piece.from_s, to_s=piece.to_s)
                self.spells.append(known)
        known.to_s = piece.to_s
        known.seconds += piece.seconds
        known.device_s += piece.seconds * piece.share
        known.steps += steps


SpanT = TypeVar("SpanT", HeldSpan, Spell)


def _apart(other: domain.JobId, since_s: float, known: SpanT) -> SpanT:
    """Returns `known` without the other job, if `known` began at that time or later."""
    if known.from_s < since_s:
        return known
    return msgspec.structs.replace(known, beside=tuple(each for each in known.beside if each != other))
