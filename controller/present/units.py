"""Durations, times of day, sizes, counts and settings as text for a person."""

from __future__ import annotations

import time
from typing import Final

from cotenant.controller.domain import texts

NONE: Final = "-"
"""What was not measured, or is not there."""


def duration(seconds: float | None) -> str:
    """`0s`, `45s`, `3m12s`, `2h05m`, `3d04h`."""
    return NONE if seconds is None else texts.duration(seconds)


def device_hours(device_s: float | None) -> str:
    """The text of device-hours, `+0.0123`: won or, with a minus, lost."""
    return NONE if device_s is None else f"{device_s / 3600:+.3g}"


def size(mib: float | None) -> str:
    if mib is None:
        return NONE
    return f"{mib / 1024:.1f}G" if mib >= 1024 else f"{mib:.0f}M"


def local_time(wall_s: float | None) -> str:
    """The local time for a person: today's times without the date."""
    if wall_s is None:
        return NONE
    then, now = time.localtime(wall_s), time.localtime()
    same_day = (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday)
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", then)


def value_text(value: object) -> str:
    """A setting or parameter, as it is written in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value) or '""'
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
