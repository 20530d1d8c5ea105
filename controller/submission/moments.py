"""Times to come as people write them, in the zone of whoever reads them.

Rule: each function raises ValueError with the whole sentence a person needs, the name of the option aside.
What the clocks of a zone show becomes an instant in `instant` alone.
"""

from __future__ import annotations

import re
import time as clocks
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from math import ceil, floor
from typing import Final

from cotenant.controller.domain import texts
from cotenant.controller.submission.quantities import duration_s, quoted_text

_CLOCK: Final = r"([0-9]{1,2}):([0-9][0-9](?::[0-9][0-9])?) ?([ap]m)?"
_SLURM_DATE: Final = r"([0-9]{1,2})([/.]?)([0-9]{1,2})(?:\2([0-9]{2}))?"
_FULL_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAYS: Final = tuple(day[:3] for day in _FULL_WEEKDAYS)
_LONG_UNITS_S: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_HOURS: Final = {"midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}
_AROUND_S: Final = 2 * 86_400
"""No clocks are so far from UTC, and none skip so much."""
_LOOK_S: Final = 6 * 3600
"""No clocks change twice within it."""
YEAR_END: Final = 3000
MOMENT_FORMS: Final = "+2h, 14:05, tomorrow 9:00, Fri 18:00 or 2027-05-01T08:00"


def moment(text: str, now: datetime | None = None, *, may_be_now: bool = False) -> datetime:
    """A time to come, in the zone of `now`, else in that of whoever reads it: `+2h`, `14:05`,
    `tomorrow 9:00`, `Fri 18:00`, ISO, or one of Slurm's forms (`now+1hour`, `noon`, `6:30 PM`, `4/30/27`).
    """
    zone = None if now is None else now.tzinfo
    now_s, word = (now or datetime.now(UTC)).timestamp(), text.strip().lower()
    try:
        found = _moment(word, now_s, zone)
        is_early = found.timestamp() < now_s + (0.0 if may_be_now and word.startswith("now") else 1e-6)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"must be a time such as {MOMENT_FORMS}, got {quoted_text(text)}") from None
    if is_early:
        raise ValueError(f"must lie ahead, got {quoted_text(text)}")
    if found.year >= YEAR_END:
        raise ValueError(f"must lie before the year {YEAR_END}, got {quoted_text(text)}")
    return found


def begin_moment(text: str, now: datetime | None = None) -> datetime:
    """Reads a time as `moment` does, and `now`."""
    return moment(text, now, may_be_now=True)


def east_s(at_s: float, zone: tzinfo | None = None) -> int:
    """How far the clocks of a zone (None: this machine's, or TZ) are ahead of UTC at an instant."""
    if zone is None:
        return clocks.localtime(at_s).tm_gmtoff
    return round((datetime.fromtimestamp(at_s, zone).utcoffset() or timedelta()).total_seconds())


def instant(wall: datetime, zone: tzinfo | None = None) -> datetime:
    """The first instant at which the clocks of a zone show this time or a later one: of a time that comes
    twice the first, and for one that they skip the end of the gap."""
    local_s = wall.replace(tzinfo=UTC).timestamp()
    offsets = {east_s(local_s + at_s, zone) for at_s in range(-_AROUND_S, _AROUND_S, _LOOK_S)}
    shown = [local_s - each for each in offsets if east_s(local_s - each, zone) == each]
    low_s, high_s = floor(local_s - max(offsets)), ceil(local_s - min(offsets))
    while not shown and high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        is_past = middle_s + east_s(middle_s, zone) >= local_s
        low_s, high_s = (low_s, middle_s) if is_past else (middle_s, high_s)
    return datetime.fromtimestamp(min(shown, default=high_s), UTC).astimezone(zone)


def _moment(text: str, now_s: float, zone: tzinfo | None) -> datetime:
    """The time that a text names, perhaps one that has passed."""
    if re.match(r"now$|(now)? *[+]", text):
        ahead_s = _ahead_s(text.removeprefix("now").replace(" ", ""))
        return datetime.fromtimestamp(now_s + ahead_s, UTC).astimezone(zone)
    if re.match(r"[0-9]{4}-|[0-9]{8}", text):
        found = datetime.fromisoformat(text.upper())
        return found if found.tzinfo is not None else instant(found, zone)
    here = datetime.fromtimestamp(now_s, zone).date()
    words = re.sub(r" (?=[ap]m\b)", "", re.sub(r"(?<=[0-9])-(?=[0-9]+:)", " ", text)).split()
    clock = next((each for each in map(_clock, words) if each is not None), None)
    rest = [word for word in words if _clock(word) is None]
    if len(rest) > 1 or len(words) - len(rest) > 1 or not words:
        raise ValueError(text)
    days = _days(rest[0], here) if rest else [here, here + timedelta(days=1)]
    times = [instant(datetime.combine(day, clock or time(0, 0)), zone) for day in days]
    return next((each for each in times if each.timestamp() > now_s), times[-1])


def _ahead_s(text: str) -> float:
    """Seconds of `+2h`, and of Slurm's `now+60` (seconds), `now+1hour`, `now+3days`; of `now`, 0."""
    text = text[1:] if text else "0"
    match = re.fullmatch(r"([0-9]{1,9})(second|minute|hour|day|week)s?", text)
    if match is not None:
        return int(match[1]) * _LONG_UNITS_S[match[2]]
    return float(text) if texts.is_whole_number(text) else duration_s(text)


def _clock(word: str) -> time | None:
    """`9:00`, `18:00:30`, `6:30pm`, `noon`; None: it is something else."""
    match = re.fullmatch(_CLOCK, word)
    if match is None:
        return time(_HOURS[word]) if word in _HOURS else None
    if match[3] and not 1 <= int(match[1]) <= 12:
        raise ValueError(word)
    hour_of_day = int(match[1]) % 12 + 12 * (match[3] == "pm") if match[3] else int(match[1])
    return time.fromisoformat(f"{hour_of_day:02}:{match[2]}")


def _days(word: str, today: date) -> list[date]:
    """`today`, `tomorrow`, a weekday, Slurm's `MM/DD[/YY]`, `MM.DD[.YY]` and `MMDD[YY]`: the first that lies
    ahead of these. Raises ValueError: it is none."""
    if word in ("today", "tomorrow"):
        return [today + timedelta(days=word == "tomorrow")]
    if word[:3] in _WEEKDAYS and _FULL_WEEKDAYS[_WEEKDAYS.index(word[:3])].startswith(word):
        next_one = today + timedelta(days=(_WEEKDAYS.index(word[:3]) - today.weekday()) % 7)
        return [next_one, next_one + timedelta(days=7)]
    match = re.fullmatch(_SLURM_DATE, word)
    if match is None or (match[2] != "/" and len(word.replace(".", "")) not in (4, 6)):
        raise ValueError(word)
    years = [2000 + int(match[4])] if match[4] else [today.year, today.year + 1]
    return [date(year, int(match[1]), int(match[3])) for year in years]
