"""What hp jobs have asked for, by device type and organisation: the highest of each hour, and of ten minutes.

Rule: changed by `see` alone, with the demand as it is after an event; between events it does not change. The
hours are what is forecast from; the ten minutes are what is known of how fast demand rises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

HOUR_S = 3600.0
SLOT_S = 600.0
SLOTS_PER_H = 6
MONTH_H = 672
SERIES_MAX = 512
"""The most organisations x types; later ones count under `OTHERS`."""
OTHERS = "(others)"
SAMPLES_MIN = 18
"""Slots needed of an hour of the day and its neighbours; with fewer, all hours count."""

DemandSeries = dict[str, list[int]]
"""Organisation -> demand by hour; the last is the newest."""


def whole(counts: Mapping[str, float], type: str) -> int:
    """Devices of a type: parts are taken together for as many as they need at least."""
    return math.ceil(counts.get(type, 0))


class DemandHistory(msgspec.Struct, kw_only=True):
    """The demand history of one controller: whole hours and slots since its time began."""

    hour: int = 0
    """The hour that is under way."""
    slot: int = 0
    now: dict[str, dict[str, int]] = {}
    """By type and organisation: the demand after the last event."""
    peak: dict[str, dict[str, int]] = {}
    """Its highest value in this hour."""
    hours: dict[str, DemandSeries] = {}
    """Highest values of the hours before; all series of a type are equally long."""
    slot_peak: dict[str, int] = {}
    slots: dict[str, list[int]] = {}
    """Of the type's total, by slot."""

    def see(self, now_s: float, by_organisation: Mapping[tuple[str, str], float]) -> bool:
        """Takes in the demand now; returns whether an hour or a slot has ended since the last time."""
        ended = self._roll(now_s)
        fresh: dict[str, dict[str, int]] = {type: {} for type in self.now}
        for (type, organisation), gpus in sorted(by_organisation.items()):
            known = fresh.setdefault(type, {})
            name = organisation if self._has_room(type, organisation) else OTHERS
            known[name] = known.get(name, 0) + math.ceil(gpus)
        self.now = fresh
        for type, demand in fresh.items():
            peaks = self.peak.setdefault(type, {})
            for name, gpus in demand.items():
                if gpus > peaks.get(name, -1):
                    peaks[name] = gpus
            self.slot_peak[type] = max(self.slot_peak.get(type, 0), sum(demand.values()))
        return ended

    def _has_room(self, type: str, organisation: str) -> bool:
        known = self.peak.get(type, {})
        return organisation in known or sum(map(len, self.peak.values())) < SERIES_MAX

    def _roll(self, now_s: float) -> bool:
        hour, slot = int(now_s // HOUR_S), int(now_s // SLOT_S)
        if slot == self.slot:
            return False
        for type, peak in self.slot_peak.items():
            total = sum(self.now.get(type, {}).values())
            kept = self.slots.setdefault(type, [])
            kept += [peak, *[total] * min(slot - self.slot - 1, MONTH_H * SLOTS_PER_H)]
            del kept[: -MONTH_H * SLOTS_PER_H]
            self.slot_peak[type] = total
        for type in self.peak if hour > self.hour else ():
            self._end_hours(type, hour - self.hour)
        self.hour, self.slot = hour, slot
        return True

    def _end_hours(self, type: str, count: int) -> None:
        series, demand = self.hours.setdefault(type, {}), self.now.get(type, {})
        length = max(map(len, series.values()), default=0)
        for name, peak in self.peak[type].items():
            kept = series.setdefault(name, [0] * length)
            kept += [peak, *[demand.get(name, 0)] * min(count - 1, MONTH_H)]
            del kept[:-MONTH_H]
        self.peak[type] = {name: demand.get(name, 0) for name in self.peak[type]}

    def total(self, type: str) -> int:
        return sum(self.now.get(type, {}).values())

    def rise(self, type: str, p: float, hours: int) -> int:
        """`quantile_p(max over s <= H of D(t + s) - D(t))`, over the slots of this hour of the day and its
        neighbours in the last four weeks; 0 where nothing is known yet."""
        slots, ahead = self.slots.get(type, []), SLOTS_PER_H * hours
        if len(slots) <= ahead:
            return 0
        first = self.slot - len(slots)
        of_day = self.slot // SLOTS_PER_H % 24
        near: list[int] = []
        every: list[int] = []
        for at, rise in enumerate(_rises(slots, ahead)):
            every.append(rise)
            if ((first + at) // SLOTS_PER_H - of_day + 1) % 24 <= 2:
                near.append(rise)
        return quantile(near if len(near) >= SAMPLES_MIN else every, p)


def _rises(slots: list[int], ahead: int) -> list[int]:
    """How far the demand rose above each slot, for slots whose hours ahead are over."""
    return [max(slots[at : at + ahead + 1]) - slots[at] for at in range(len(slots) - ahead)]


def quantile(values: list[int], p: float) -> int:
    """The k-th smallest of n, k = ceil((n + 1) p), the largest where there are too few."""
    ranked = sorted(values)
    return ranked[min(len(ranked), math.ceil((len(ranked) + 1) * p)) - 1] if ranked else 0
