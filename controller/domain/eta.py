"""What is told of a job's future: when it starts and when it ends, each as an interval.

Rule: an interval is in seconds from the moment it was told. One that nobody can give is None, never a guess;
a bound that does not exist is infinite.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from cotenant.controller.domain.ids import JobId

EtaKind = Literal["submission", "revisit"]
"""Told once soon after a job arrived; told again of a job that has been told of before."""
LEVELS: Final = (0.1, 0.5, 0.9)


class EtaInterval(msgspec.Struct, frozen=True, array_like=True):
    """A tenth of the times lies below `p10_s`, half below `p50_s`, nine tenths below `p90_s`."""

    p10_s: float
    p50_s: float
    p90_s: float

    def holds(self, actual_s: float) -> bool:
        return self.p10_s <= actual_s <= self.p90_s


class ToldInterval(msgspec.Struct, frozen=True, array_like=True):
    """An interval as the roll-outs gave it, and as it was told, after correction by earlier errors."""

    raw: EtaInterval
    told: EtaInterval
    floor_s: float = 0.0
    """It cannot happen before this, whatever jobs take: the clock fixes it, and no correction moves it."""


class ToldEta(msgspec.Struct, frozen=True, kw_only=True):
    """The interval of one job that will be compared with what comes."""

    job_id: JobId
    kind: EtaKind
    finish: ToldInterval
    start: ToldInterval | None = None
    """None: it had started."""
    is_calibrated: bool = False
    """There were enough errors to correct it by."""
