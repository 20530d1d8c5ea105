"""Clock times and durations as cluster logs write them, to seconds.

Rule: a log that names no time zone is read as if its clock had never been set back or forward; a job that
runs across such a night is an hour off.
"""

from __future__ import annotations

import datetime
import math
import re

import numpy as np

from cotenant.controller.sim.traces.trace import Floats

UNKNOWN = frozenset(("", "none", "null", "unknown", "nan", "nat", "n/a"))
CLOCK_TIME = "a time like 2020-06-09 18:41:01"
_EPOCH = datetime.datetime(1970, 1, 1)
_ELAPSED = re.compile(r"(?:(?:(\d{1,6})-)?(\d{1,6}):)?(\d{1,6}):(\d{1,6}(?:\.\d{1,9})?)", re.ASCII)


def clock_s(text: str) -> float:
    """Seconds since 1970; NaN where the log says that there is no time.

    Raises:
        ValueError: not a time.
    """
    if text.strip().lower() in UNKNOWN:
        return math.nan
    time = datetime.datetime.fromisoformat(text.strip())
    if time.tzinfo is not None:
        return time.timestamp()
    return (time - _EPOCH).total_seconds()


def elapsed_s(text: str) -> float:
    """Seconds of `[[DAYS-]HOURS:]MINUTES:SECONDS`; NaN where there is none.

    Raises:
        ValueError: not a duration.
    """
    if text.strip().lower() in UNKNOWN:
        return math.nan
    found = _ELAPSED.fullmatch(text.strip())
    if not found:
        raise ValueError(text)
    days, hours, minutes = (int(part or 0) for part in found.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(found[4])


def from_first(submit_s: Floats) -> Floats:
    """The same times, counted from the earliest."""
    if not len(submit_s) or bool(np.all(np.isnan(submit_s))):
        return submit_s
    return submit_s - float(np.nanmin(submit_s))
