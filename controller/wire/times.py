"""Times in messages and in JSON: RFC 3339 in UTC, to the millisecond."""

from __future__ import annotations

import re
import time
from datetime import date
from functools import lru_cache
from typing import Annotated, Final, overload

import msgspec

_TIME: Final = r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]\.[0-9]{3}Z\Z"
_NUMBERS: Final = re.compile(r"[0-9]+")
_EPOCH: Final = date(1970, 1, 1).toordinal()
Utc = Annotated[str, msgspec.Meta(pattern=_TIME)]
"""RFC 3339 as `utc` writes it; a message with any other form is refused."""


@overload
def utc(wall_s: float) -> Utc: ...
@overload
def utc(wall_s: float | None) -> Utc | None: ...
def utc(wall_s: float | None) -> Utc | None:
    """RFC 3339, to the millisecond."""
    if wall_s is None:
        return None
    whole, part = divmod(round(wall_s * 1000), 1000)
    return f"{_second(whole)}.{part:03d}Z"


@lru_cache(1_000)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


@overload
def wall_s(at: Utc) -> float: ...
@overload
def wall_s(at: Utc | None) -> float | None: ...
def wall_s(at: Utc | None) -> float | None:
    """The inverse of `utc`: seconds since the epoch."""
    if at is None:
        return None
    year, month, day, hour, minute, second, part = map(int, _NUMBERS.findall(at))
    days = date(year, month, 1).toordinal() - _EPOCH + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second + part / 1000
