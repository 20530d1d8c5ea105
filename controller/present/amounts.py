"""Amounts of device time."""

from __future__ import annotations


def hours(device_s: float) -> str:
    return f"{device_s / 3600:.3g}"
