"""What a policy with classes says of them, for people: `cotenant policy show`, metrics, the fan chart."""

from __future__ import annotations

import msgspec


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy with classes says of the devices of one type."""

    device_type: str
    capacity: int
    free: int
    hp_placed: int
    hp_waiting: int
    spot_may_take: int
    """More than they have."""
    spot_waiting: int
    """Devices that waiting spot jobs ask for."""
    kept_back: int
    """Free devices that they do not get."""
    forecast_median: tuple[float, ...] = ()
    """Of hp demand, by hours ahead; the first is the present hour."""
    forecast_upper: tuple[float, ...] = ()
    forecast_note: str = ""
    forecast_model: str = ""
    """Which trained model it is by; empty: none."""
    forecast_age_s: float | None = None
    """For how long that one has forecast; None: there is none."""
    recent: tuple[int, ...] = ()
    """Hp demand of the last hours, the highest of each."""


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy with classes says of itself."""

    guaranteed_h: float
    level: float
    """Probability with which the quota keeps that promise."""
    eta: float | None
    """None: it has none."""
    evicted: int
    finished: int
    """Runs of spot jobs, since the policy was set."""
    broken_promises: int = 0
    """Runs of the jobs that are listed which were preempted within the guaranteed hours."""
    pools: tuple[PoolReport, ...]
