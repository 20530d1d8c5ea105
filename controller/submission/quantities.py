"""Durations, sizes, counts and lists as people write them.

Rule: a bare number means what Slurm takes it for (minutes, MiB); each function raises ValueError with
the whole sentence a person needs, the name of the option aside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from cotenant.controller.domain import PRIORITY_MAX, texts

COUNT_MAX: Final = 1_000_000_000
DURATION_MAX_S: Final = 366 * 86_400.0
ARRAY_TASKS_MAX: Final = 1_000
ARRAY_INDEX_MAX: Final = 999_999
SHOWN_MAX: Final = 60
"""Characters of a wrong value that are repeated to whoever gave it."""

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WITH_UNITS: Final = r"(?:[0-9]+(?:\.[0-9]+)?[smhd])+"
_SLURM: Final = r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?"
_SIZE: Final = r"(?ai)([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?"
_WHOLE: Final = r"[+-]?[0-9]{1,18}"
_IN_MIB: Final = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}
_NUMBER: Final = r"-?(?:[0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})"
_RANGE: Final = rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?"
_LIKE_A_RANGE: Final = r"[-+.0-9eE ]*\.\.[-+.0-9eE ]*"
_ARRAY_PART: Final = r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?"

DURATION_FORMS: Final = "90s, 10m, 2h, 1h30m, MINUTES, MM:SS, HH:MM:SS or D-HH[:MM[:SS]]"


def quoted_text(text: str) -> str:
    """What was given, in quotes, cut where it is long: an error stays one line that can be read."""
    return repr(text) if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]!r}... ({len(text)} characters)"


def duration_s(text: str) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, or one of Slurm's forms (a bare number: minutes)."""
    seconds = _duration_s(text.strip().lower())
    if seconds is None:
        raise ValueError(f"must be a duration ({DURATION_FORMS}), got {quoted_text(text)}")
    if not 0 < seconds <= DURATION_MAX_S:
        raise ValueError(
            f"must be above 0 and at most {DURATION_MAX_S / 86_400:.0f} days, got {quoted_text(text)}"
        )
    return seconds


def _duration_s(text: str) -> float | None:
    if re.fullmatch(_WITH_UNITS, text):
        return sum(float(part[:-1]) * _UNITS_S[part[-1]] for part in re.findall(r"[0-9.]+[smhd]", text))
    return slurm_duration_s(text)


def slurm_duration_s(text: str) -> float | None:
    """Reads a time of Slurm's: `1-02:00:00`, `1-02`, `02:00:00`, `30:00`, or `30` for minutes. None for a
    word (`UNLIMITED`)."""
    match = re.fullmatch(_SLURM, text)
    if match is None:
        return None
    days, first, second, third = (int(part) if part is not None else None for part in match.groups())
    assert first is not None  # the pattern requires it
    if days is not None:  # D-HH, D-HH:MM, D-HH:MM:SS
        return ((days * 24 + first) * 60 + (second or 0)) * 60.0 + (third or 0)
    if third is not None:  # HH:MM:SS
        return (first * 60 + (second or 0)) * 60.0 + third
    return first * 60.0 + (second or 0)  # MINUTES, MM:SS


def time_limit_s(text: str) -> float | None:
    """Reads a time limit as `duration_s` does; `unlimited` (or Slurm's `infinite`) is no limit."""
    return None if text.strip().lower() in ("unlimited", "infinite") else duration_s(text)


def size_mib(text: str) -> int:
    """MiB of `8G`, `512M`, `1.5GiB` or a bare number of MiB, rounded up."""
    match = re.fullmatch(_SIZE, text.strip())
    if match is None:
        raise ValueError(f"must be a size such as 8G or 512M, got {quoted_text(text)}")
    mib = float(match[1]) * _IN_MIB[match[2].upper()]
    if mib <= 0:
        raise ValueError(f"must be above 0, got {quoted_text(text)}")
    if mib > COUNT_MAX:
        raise ValueError(f"must be a size that a machine can have, got {quoted_text(text)}")
    return -int(-mib // 1)


def count(text: str, at_least: int = 1) -> int:
    """Reads a whole number that is at least `at_least`."""
    if not re.fullmatch(_WHOLE, text.strip()):
        raise ValueError(f"must be a whole number, got {quoted_text(text)}")
    value = int(text)
    if value < at_least:
        raise ValueError(f"must be at least {at_least}, got {value}")
    if value > COUNT_MAX:
        raise ValueError(f"must be at most {COUNT_MAX}, got {value}")
    return value


PART_MIN: Final = 0.01
"""Of a GPU: less is a slip."""


class GpuRange(NamedTuple):
    """How many GPUs a job takes; more than one number: it is elastic."""

    least: int
    most: int
    fraction: float = 1.0
    """Below 1: a part of one."""


def gpu_range(text: str) -> GpuRange:
    """`4`, `1-4`, or `0.5`."""
    if re.fullmatch(r"0?\.[0-9]{1,9}", text.strip()):
        part = float(text)
        if not PART_MIN <= part < 1.0:
            raise ValueError(f"a part of a GPU must be at least {PART_MIN}, got {quoted_text(text)}")
        return GpuRange(1, 1, part)
    least, dash, most = text.strip().partition("-")
    if not (dash and least and most):
        return GpuRange(number := count(text), number)
    found = GpuRange(count(least), count(most))
    if found.least > found.most:
        raise ValueError(f"must be a number or MIN-MAX, got {quoted_text(text)}")
    return found


def count_from_zero(text: str) -> int:
    return count(text, at_least=0)


def priority(text: str) -> int:
    """A whole number, negative ones included."""
    if not re.fullmatch(_WHOLE, text.strip()):
        raise ValueError(f"must be a whole number, got {quoted_text(text)}")
    number = int(text)
    if abs(number) > PRIORITY_MAX:
        raise ValueError(f"must be {-PRIORITY_MAX} to {PRIORITY_MAX}, got {quoted_text(text)}")
    return number


def yes_or_no(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "yes", "1", "false", "no", "0"):
        raise ValueError(f"must be yes or no, got {quoted_text(text)}")
    return word in ("true", "yes", "1")


def word_list(text: str) -> tuple[str, ...]:
    """Words between commas (or Slurm's `&`)."""
    words = tuple(word.strip() for word in re.split(r"[,&]", text))
    if not all(texts.WORD.fullmatch(word) for word in words):
        raise ValueError(f"must be words separated by commas, got {quoted_text(text)}")
    return words


class ArrayTasks(NamedTuple):
    """The indices of an array, in rising order, and how many of its tasks may run at once; 0: all."""

    indices: tuple[int, ...]
    limit: int = 0


def array_tasks(text: str) -> ArrayTasks:
    """`0-9`, `1,3,7`, `0-20:5`; with `%4` behind it at most four run at once."""
    ranges, percent, at_once = text.partition("%")
    if percent and not re.fullmatch(r"[0-9]{1,9}", at_once.strip()):
        raise ValueError(f"must have a number behind %, got {quoted_text(text)}")
    limit = int(at_once) if percent else 0
    if percent and not limit:
        raise ValueError(f"must let at least 1 task run, got {quoted_text(text)}")
    return ArrayTasks(_indices(ranges), limit)


def _indices(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(_ARRAY_PART, part.strip())
        if match is None:
            raise ValueError(f"must be indices such as 0-9, 1,3,7 or 0-20:5, got {quoted_text(text)}")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1:
            raise ValueError(f"has an empty range: {part!r}")
        if last > ARRAY_INDEX_MAX or (last - first) // step >= ARRAY_TASKS_MAX:
            raise ValueError(f"may have {ARRAY_TASKS_MAX} tasks, with indices up to {ARRAY_INDEX_MAX}")
        found.update(range(first, last + 1, step))
    if len(found) > ARRAY_TASKS_MAX:
        raise ValueError(f"may have {ARRAY_TASKS_MAX} tasks, got {len(found)}")
    return tuple(sorted(found))


class GridValues(NamedTuple):
    """The values of a grid, as written, and how many tasks may run at once; 0: all."""

    name: str
    values: tuple[str, ...]
    at_once: int = 0


def grid_values(text: str) -> GridValues:
    """`lr=.1,.01`, `seed=0..4` (with 4), `n=0..10..2`; with `%2` behind it at most two tasks run at once."""
    name, equals, rest = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", name):
        raise ValueError(f"must be NAME=VALUES such as lr=.1,.01 or seed=0..4, got {quoted_text(text)}")
    match = re.fullmatch(r"(.*?)(?:%([1-9][0-9]{0,8}))?", rest)
    listed, at_once = (match[1], match[2]) if match is not None else (rest, None)
    values: list[str] = []
    for part in listed.split(","):
        values += _range_values(part.strip())
        if len(values) > ARRAY_TASKS_MAX:
            raise ValueError(f"{name} may have {ARRAY_TASKS_MAX} values, got more")
    for value in values:
        if not 0 < len(value) <= 128 or not value.isprintable():
            raise ValueError(f"{name} must have values of 1 to 128 characters, got {quoted_text(value)}")
    if len(set(values)) < len(values):
        raise ValueError(f"{name} has a value twice, got {quoted_text(listed)}")
    return GridValues(name, tuple(values), int(at_once or 0))


def _range_values(part: str) -> Sequence[str]:
    """The numbers of `0..4`, `08..10`, `5..1..-2` or `0.1..0.3..0.1`, counted in decimals; any other word as
    it is. What looks like a range and is none is refused: a sweep must not have one task by a slip."""
    if not re.fullmatch(_LIKE_A_RANGE, part) or not re.search("[0-9]", part):
        bare = re.fullmatch(r'"(.*)"', part)
        return (bare[1],) if bare and re.fullmatch(_LIKE_A_RANGE, bare[1]) else (part,)
    match = re.fullmatch(_RANGE, part)
    if match is None or "..." in part:
        raise ValueError(
            f"has what looks like a range and is none: {quoted_text(part)}; write FIRST..LAST..STEP such as "
            f"0.1..0.3..0.1, or the values between commas, or '\"{part[:SHOWN_MAX]}\"' for this word itself"
        )
    first, last, given = match.groups()
    if given is None and "." in first + last:
        raise ValueError(f"needs a step between decimals: {part!r}; such as {part}..0.1")
    start, end, step = Decimal(first), Decimal(last), Decimal(given or 1)
    places = max(-int(each.as_tuple().exponent) for each in (start, step))
    whole, whole_last = (each.lstrip("-").partition(".")[0] for each in (first, last))
    width = len(whole) if whole[:1] == "0" else 0
    if whole_last[:1] == "0" and len(whole_last) > 1 and len(whole_last) != max(width, 1):
        raise ValueError(f"has zeros in front that do not match: {part!r}; write {first} as wide as {last}")
    count = int((end - start) // step) + 1 if step and (end - start) * step >= 0 else 0
    if not count:
        down = f"; {first}..{last}..-1 counts down" if given is None else ""
        raise ValueError(f"has an empty range: {part!r}{down}")
    numbers = (start + at * step for at in range(min(count, ARRAY_TASKS_MAX + 1)))
    return [_padded(f"{number:.{places}f}", width) for number in numbers]


def _padded(number: str, width: int) -> str:
    """With as many digits before the point."""
    whole, point, rest = number.removeprefix("-").partition(".")
    return "-" * number.startswith("-") + whole.zfill(width) + point + rest
