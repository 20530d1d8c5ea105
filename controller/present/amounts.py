"""Amounts of device time and energy."""

from __future__ import annotations

from cotenant.controller.present.units import plural


def hours(device_s: float) -> str:
    return f"{device_s / 3600:.3g}"


def energy(kwh: float, attempts: int, unknown_attempts: int) -> str:
    """Energy as far as it is known. `attempts`: in all."""
    if unknown_attempts == 0:
        return f"{kwh:.3g} kWh"
    if unknown_attempts >= attempts:
        return "unknown"
    return f"{kwh:.3g} kWh, without {unknown_attempts} of {plural(attempts, 'attempt')}: theirs is unknown"
