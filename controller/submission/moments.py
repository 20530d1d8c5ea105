"""Times to come as people write them, in the zone of whoever reads them.

Rule: each function raises ValueError with the whole sentence a person needs, the name of the option aside.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from typing import Final

from cotenant.controller.domain import texts
from cotenant.controller.submission.quantities import duration_s, quoted_text

_CLOCK: Final = r"[0-9]{1,2}:[0-9][0-9]"
_FULL_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAYS: Final = tuple(day[:3] for day in _FULL_WEEKDAYS)
_LONG_UNITS_S: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_HOURS: Final = {"midnight": time(0, 0), "noon": time(12, 0), "fika": time(15, 0), "teatime": time(16, 0)}
MOMENT_FORMS: Final = "+2h, 14:05, tomorrow 9:00, Fri 18:00 or 2027-05-01T08:00"


def moment(text: str, now: datetime | None = None) -> datetime:
    """A time to come, in the zone of whoever reads it: `+2h`, `14:05`, `tomorrow 9:00`, `Fri 18:00`, ISO,
    or one of Slurm's forms (`now+1hour`, `noon`, `4/30/27`)."""
    found = _moment(text, now or datetime.now().astimezone(), is_given=now is not None)
    if found <= (now or datetime.now().astimezone()):
        raise ValueError(f"must lie ahead, got {quoted_text(text)}")
    return found


def begin_moment(text: str, now: datetime | None = None) -> datetime:
    """Reads a time as `moment` does, and `now`."""
    if text.strip().lower() == "now":
        return now or datetime.now().astimezone()
    return moment(text, now)


def _moment(text: str, now: datetime, *, is_given: bool) -> datetime:
    """The time that a text names, perhaps one that has passed. `is_given`: it was not read from the clock;
    its zone is to be taken as it is."""
    day_word, _, clock_word = text.strip().lower().partition(" ")
    try:
        if day_word.startswith(("+", "now+")):
            return now + timedelta(seconds=_ahead_s(text.strip().lower()))
        clock = _clock(clock_word or day_word)
        day = _day(day_word, now.date())
        if day is None and clock is not None and not clock_word:
            day = now.date() + timedelta(days=clock <= now.time())
        elif day is not None and clock is None and not clock_word:
            clock = time(0, 0)
        if day is None or clock is None:
            found = datetime.fromisoformat(text.strip())
        elif day_word[:3] in _WEEKDAYS and day == now.date() and clock <= now.time():
            found = datetime.combine(day + timedelta(days=7), clock)
        else:
            found = datetime.combine(day, clock)
        if found.tzinfo is None:  # The clock of this machine knows when summer ends.
            found = found.replace(tzinfo=now.tzinfo) if is_given else found.astimezone()
        return found
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"must be a time such as {MOMENT_FORMS}, got {quoted_text(text)}") from None


def _ahead_s(text: str) -> float:
    """Seconds of `+2h`, and of Slurm's `now+60` (seconds), `now+1hour`, `now+3days`."""
    text = text.removeprefix("now")[1:]
    match = re.fullmatch(r"([0-9]{1,9})(second|minute|hour|day|week)s?", text)
    if match is not None:
        return int(match[1]) * _LONG_UNITS_S[match[2]]
    return float(text) if texts.is_whole_number(text) else duration_s(text)


def _clock(word: str) -> time | None:
    """`9:00`, `18:00:30`, `6:30pm`, `noon`; None: it is something else."""
    match = re.fullmatch(rf"({_CLOCK}(?::[0-9][0-9])?) ?([ap]m)?", word)
    if match is None:
        return _HOURS.get(word)
    hour, _, rest = match[1].partition(":")
    if match[2] and not 1 <= int(hour) <= 12:
        raise ValueError(word)
    hour_of_day = int(hour) % 12 + 12 * (match[2] == "pm") if match[2] else int(hour)
    return time.fromisoformat(f"{hour_of_day:02}:{rest}")


def _day(word: str, today: date) -> date | None:
    """`today`, `tomorrow`, a weekday (today or the next one), Slurm's `MM/DD/YY`, ISO; None: it is none."""
    if word in ("today", "tomorrow"):
        return today + timedelta(days=word == "tomorrow")
    if word[:3] in _WEEKDAYS and _FULL_WEEKDAYS[_WEEKDAYS.index(word[:3])].startswith(word):
        return today + timedelta(days=(_WEEKDAYS.index(word[:3]) - today.weekday()) % 7)
    match = re.fullmatch(r"([0-9]{1,2})/([0-9]{1,2})(?:/([0-9]{2}))?", word)
    if match is not None:
        year = 2000 + int(match[3]) if match[3] else today.year
        return date(year, int(match[1]), int(match[2]))
    return date.fromisoformat(word) if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", word) else None
