"""Bytes of a table of hourly demand -> `Demand`, each error with file, line and column, and what to do.

Rule: one row per hour, in any order; a row that is not there, or an empty cell, is a missing hour. Columns:
`hour` (counted from a midnight) or `time` (ISO 8601, on the hour; then dates are known), and one per
organisation or pool, `gpus_active_NAME`. The file's own total (`gpus_active_requested`) counts only where it
is alone. Whatever else is in the file is named and not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller import sim
from cotenant.controller.papers.gfs.forecast import DAY_H, TOTAL, Demand
from cotenant.controller.papers.gfs.training.holidays import EPOCH

PREFIX: Final = "gpus_active_"
OWN_TOTAL: Final = "gpus_active_requested"
HOURS_MAX: Final = 20 * 366 * DAY_H
SERIES_MAX: Final = 2_000
CELLS_MAX: Final = 20_000_000
BYTES_MAX: Final = 256 * 1024 * 1024


class DemandFile(NamedTuple):
    demand: Demand
    ignored: tuple[str, ...]
    """Columns without a meaning here."""
    missing: int
    """Hours between the first and the last in which no series, or not every series, is known."""


def read(data: bytes, name: str, *, columns: Sequence[str] = (), start: date | None = None) -> DemandFile:
    """The demand in a file's bytes.

    Args:
        columns: those of the series; empty: all that begin with `gpus_active_`.
        start: the date of the file's hour 0, where it has no `time`.

    Raises:
        TraceProblem: whatever is wrong.
    """
    if len(data) > BYTES_MAX:
        raise sim.TraceProblem(f"is larger than {BYTES_MAX >> 20} MiB", file=name, hint="cut it into parts")
    data = sim.unpack_gzip(data, name) if data.startswith(sim.GZIP_MAGIC) else data
    if not data.strip():
        raise sim.TraceProblem("is empty", file=name)
    found = sim.table(sim.decode_utf_8(data, name), name)
    hours, dated = _hours(found, start)
    names = _series(found, columns)
    first, count = int(hours.min()), int(hours.max() - hours.min()) + 1
    if count > HOURS_MAX or count * len(names) > CELLS_MAX:
        raise sim.TraceProblem(
            f"spans {count} hours of {len(names)} series: too much", file=name, hint="is `hour` in hours?"
        )
    values = np.full((len(names), count), np.nan)
    for row, column in enumerate(names):
        values[row, hours - first] = found.numbers(column, negative=False)
        if not np.isfinite(values[row]).any():
            raise sim.TraceProblem("holds no value at all", file=name, column=column, hint="leave it out")
    used = {*names, "hour", "time"}
    short = tuple(column.removeprefix(PREFIX) for column in names)
    if len(set(short)) != len(short) or (len(short) > 1 and TOTAL in short):
        raise sim.TraceProblem(
            f"two series would be named alike, or {TOTAL}", file=name, hint="name others with --columns"
        )
    return DemandFile(
        demand=Demand(names=short, values=values, first_hour=first, dated=dated),
        ignored=tuple(column for column in found.columns if column not in used),
        missing=int((~np.isfinite(values)).any(axis=0).sum()),
    )


def _series(found: sim.TextTable, columns: Sequence[str]) -> tuple[str, ...]:
    for column in columns:
        if column not in found:
            hint = sim.nearest(column, found.columns) or f"it has {', '.join(list(found.columns)[:12])}"
            raise sim.TraceProblem(
                f"has no column {sim.show_value(column)}", file=found.file, line=1, hint=hint
            )
    every = [column for column in found.columns if column.startswith(PREFIX)]
    parts = [column for column in every if column != OWN_TOTAL]
    names = tuple(dict.fromkeys(columns)) or tuple(parts or every)
    if not names:
        raise sim.TraceProblem(
            f"has no column {PREFIX}NAME", file=found.file, line=1, hint="name columns of GPUs with --columns"
        )
    if len(names) > SERIES_MAX:
        raise sim.TraceProblem(f"has {len(names)} series; {SERIES_MAX} is the most", file=found.file)
    return names


def _hours(
    found: sim.TextTable, start: date | None
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], bool]:
    """The hour of each row, and whether the hours are dates."""
    if "time" in found:
        dated, column = True, "time"
        values = found.parse_column("time", _hour_of_text, "a time on the hour, as 2024-10-01T13:00")
    elif "hour" in found:
        dated, column = start is not None, "hour"
        values = found.numbers("hour", negative=False)
    else:
        hint = sim.nearest("hour", found.columns) or "hour: counted from a midnight; time: 2024-10-01T13:00"
        raise sim.TraceProblem("has no column hour or time", file=found.file, line=1, hint=hint)
    if not len(values):
        raise sim.TraceProblem("has no rows", file=found.file)
    hours = np.full(len(values), -1, np.int64)
    seen: dict[int, int] = {}
    for row, value in enumerate(values.tolist()):
        if not float(value).is_integer():  # NaN is none.
            what = f"{sim.show_value(found.text(column)[row])} is no whole hour"
            raise found.problem(row, column, what, "one row per hour; leave out those that are missing")
        hours[row] = int(value)
        if hours[row] in seen:
            hour = sim.show_value(found.text(column)[row])
            what = f"hour {hour} is there twice, first in line {seen[hours[row]]}"
            raise found.problem(row, column, what, "one row per hour")
        seen[hours[row]] = int(found.lines[row])
    if start is not None and "time" not in found:
        hours += (start - EPOCH).days * DAY_H
    return hours, dated


def _hour_of_text(text: str) -> float:
    """Reads a time as hours from 1970. Raises ValueError. A time with an offset is taken in UTC, one without
    as it stands."""
    at = datetime.fromisoformat(text)
    at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    if at.minute or at.second or at.microsecond:
        raise ValueError(text)
    return at.timestamp() / 3600
