"""Pairs of jobs that shared devices, as a table."""

from __future__ import annotations

from typing import Final

from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, device_hours
from cotenant.controller.wire import clients as wire


def measured_pairs(limit: int, containing: str = "") -> wire.ListPairs:
    """The request for measured pairs."""
    return wire.ListPairs(containing=containing, limit=limit)


def _ratio(value: float | None, count: int, never_alone: bool) -> str:
    if value is None:
        return "never alone" if never_alone else "too few steps yet" if count else NONE
    return f"{value:.2f} ({count})"


def _predicted_ratios(pair: wire.PairView) -> str:
    both = (pair.first_predicted_xi, pair.second_predicted_xi)
    return ", ".join(NONE if each is None else f"{each:.2f}" for each in both) if any(both) else NONE


COLUMNS: Final = (
    Column("FIRST", lambda p: p.first, limit=40),
    Column("SECOND", lambda p: p.second, limit=40),
    Column("FIRST SLOWED", lambda p: _ratio(p.first_xi, p.first_count, p.first_never_alone), right=True),
    Column("SECOND SLOWED", lambda p: _ratio(p.second_xi, p.second_count, p.second_never_alone), right=True),
    Column("PREDICTED", _predicted_ratios, right=True, rank=3),
    Column("BENEFIT", lambda p: NONE if p.benefit is None else f"{p.benefit:+.2f}", right=True),
    Column("WON, DEVICE-H", lambda p: device_hours(p.won_device_s), right=True, rank=1),
    Column("VERDICT", lambda p: p.verdict),
    Column("WHY NOT AGAIN", lambda p: p.quarantine, rank=2),
)
