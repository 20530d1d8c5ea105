"""Times at which the engine looks at something again.

Rule: an alarm is data in a heap and never taken out of it; one that is out of date (other attempt, other
phase) is seen to be so when it rings.
"""

from __future__ import annotations

from typing import Literal

import msgspec

AlarmKind = Literal["deadline", "limit", "back-off", "age", "probation", "wake", "reunite"]


class Alarm(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Something to look at again; stale ones (other attempt, other phase) are ignored when they ring."""

    at_s: float
    kind: str
    subject: str
    attempt: int
