"""The spot quota: how many devices spot jobs may hold (section 3.3, eqs. 9 to 11, and ours by the rise of
demand).

Source: eq. 9 as its text has it: f = C - min(C, demand), 0 where demand exceeds C (printed with
max). Eq. 10: Q = min(f eta, S0 + Sa); Sa are all spot jobs that run: a run's promise begins with it. Departs
from eq. 11 in that eta stays within 0.1 to 2, that q = 1 - p stands where it prints p (it uses e as a rate
and p as the rate that it must not exceed; its text: the eviction rate must not exceed 1 - p), and in that
each factor is raised to the power interval / H: the evidence is that of H hours and is looked at every five
minutes; applied whole each time eta swings between its bounds.
"""

from __future__ import annotations

from typing import Final

ETA_MIN: Final = 0.1
ETA_MAX: Final = 2.0


def inventory(capacity: int, demand: float) -> float:
    """The inventory f(p, H): what is left of the capacity when the demand comes true."""
    return capacity - min(float(capacity), demand)


def spot_quota(inventory_gpus: float, eta: float, idle: int, running: int) -> int:
    """The quota Q of spot jobs (eq. 10)."""
    return int(min(inventory_gpus * eta, idle + running))


def next_eta(eta: float, *, rate: float, p: float, wait_s: float, theta_s: float, power: float) -> float:
    """The next value of `eta` (eq. 11)."""
    q = 1.0 - p
    if rate > 1.5 * q:
        factor = q / rate
    elif rate < 0.5 * q and wait_s > theta_s:
        factor = 1.5 - rate / q
    else:
        return eta
    return float(min(ETA_MAX, max(ETA_MIN, eta * factor**power)))
