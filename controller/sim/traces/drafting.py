"""From the rows of a source to a trace: which column is what and how it is read, what is left out, in which
order, and what is said about it.

Rule: a source is a row (`Source`): its columns by the field of a `Trace` that they fill, each with what reads
it. Only what is no column of its own is computed by its reader.

Rule: a row that is wrong is refused by what reads it, with its line; a row that is right but no job to
schedule is left out here, and counted by reason. Nothing is dropped without a count.

Rule: a log that names no time zone is read as if its clock had never been set back or forward; a job that
runs across such a night is an hour off.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim.traces.table import TextTable
from cotenant.controller.sim.traces.trace import Floats, Labels, Trace, TraceProblem

UNKNOWN = frozenset(("", "none", "null", "unknown", "nan", "nat", "n/a"))
CLOCK_TIME = "a time like 2020-06-09 18:41:01"
_EPOCH = datetime.datetime(1970, 1, 1)
_ELAPSED = re.compile(r"(?:(?:(\d{1,6})-)?(\d{1,6}):)?(\d{1,6}):(\d{1,6}(?:\.\d{1,9})?)", re.ASCII)


def clock_s(text: str) -> float:
    """Seconds since 1970 that a log's time stands for; NaN where the log says that there is no time.

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


def times_from_first(submit_s: Floats) -> Floats:
    """The submission times, counted from the earliest."""
    if not len(submit_s) or bool(np.all(np.isnan(submit_s))):
        return submit_s
    return submit_s - float(np.nanmin(submit_s))


def moments(rows: TextTable, column: str) -> Floats:
    """Times of a clock, in seconds since 1970."""
    return rows.parse_column(column, clock_s, CLOCK_TIME)


def moments_from_first(rows: TextTable, column: str) -> Floats:
    """Times of a clock, in seconds from the earliest."""
    return times_from_first(moments(rows, column))


def counts(rows: TextTable, column: str) -> Floats:
    """Numbers of 0 and more."""
    return rows.numbers(column, negative=False)


def labels(rows: TextTable, column: str) -> Labels:
    """Texts, of which an empty one is none."""
    return Labels.make(rows.text(column))


TEXTS: Final = ("user", "vc", "organisation", "model", "gpu_type", "state")
Converter = Callable[[TextTable, str], Any]
"""Makes a column of a trace from one of a table. Raises TraceProblem, with line and column."""
PLAIN: Final[dict[str, Converter]] = {
    "submit_s": TextTable.numbers,
    "duration_s": TextTable.numbers,
    "gpus": counts,
    "job_ids": TextTable.unique,
    **dict.fromkeys(TEXTS, labels),
}


class Source(NamedTuple):
    """A format of traces: where its data are from, and which of its columns fills which field of a trace."""

    title: str
    columns: Mapping[str, str]
    """By field of `Trace`, in the order in which they are read: the first that is wrong is reported."""
    converters: Mapping[str, Converter] = {}
    """Of fields that are not read as in PLAIN."""
    licence: str = ""

    def trace(
        self, rows: TextTable, name: str, *, excluded: Mapping[str, int] | None = None, **computed: Any
    ) -> Trace:
        """The jobs of a table, whose columns that are missing are empty. `computed`: fields that no single
        column holds."""
        convert = {**PLAIN, **self.converters}
        read = {
            field: convert[field](rows, column) for field, column in self.columns.items() if column in rows
        }
        about = {"name": name, "source": self.title, "licence": self.licence}
        return make_trace({**about, **read, **computed}, rows.lines, excluded or {})


CPU_ONLY: Final = "no GPU"
NOT_A_JOB: Final[tuple[tuple[str, str, Callable[[Floats], NDArray[np.bool_]]], ...]] = (
    (CPU_ONLY, "gpus", lambda gpus: gpus == 0.0),
    ("no GPU count", "gpus", np.isnan),
    ("no submission time", "submit_s", np.isnan),
    ("never ended, or no duration", "duration_s", np.isnan),
    ("ended before it started", "duration_s", lambda duration_s: duration_s < 0.0),
    ("zero duration", "duration_s", lambda duration_s: duration_s == 0.0),
)
"""Why a row is no job to schedule; the first that applies is the one counted."""


def make_trace(given: Mapping[str, Any], lines: NDArray[np.int64], excluded: Mapping[str, int]) -> Trace:
    """The trace of columns in the source's order, shape (n,): rows that are no jobs left out, the others in
    order of submission.

    Args:
        given: fields of `Trace`. NaN = the source does not have it; columns of text may be missing.
        lines: of each row in its file, for messages.
        excluded: what its reader has left out, by reason.

    Raises:
        TraceProblem: no row is left.
    """
    n = len(lines)
    before = n + sum(excluded.values())
    kept, excluded = _job_rows(given, dict(excluded))
    if not np.any(kept):
        why = ", ".join(f"{reason}: {number:,}" for reason, number in excluded.items()) or "there are none"
        raise TraceProblem(f"no job is left of {before:,} rows ({why})", file=given["name"])
    texts = {field: given.get(field, Labels.none(n)) for field in TEXTS}
    rows = np.flatnonzero(kept)
    clock_per_vc = _restarts_in_every_vc(given["submit_s"][rows], texts["vc"].codes[rows])
    notes: list[str] = []
    if not clock_per_vc:
        rows = _rows_by_submission(rows, given["submit_s"], lines, notes)
    columns = {field: given[field][rows] for field in ("submit_s", "duration_s", "gpus")}
    ids = given.get("job_ids", ())
    return Trace(
        **{
            **given,
            **columns,
            **{field: column.take(rows) for field, column in texts.items()},
            "job_ids": tuple(ids[row] for row in rows.tolist()) if ids else (),
            "hp": given.get("hp", np.zeros(n, np.bool_))[rows],
        },
        clock_per_vc=clock_per_vc,
        excluded=excluded,
        notes=tuple(notes),
    )


def _job_rows(given: Mapping[str, Any], excluded: dict[str, int]) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Which rows are jobs, and how many are not, by reason."""
    kept = np.ones(len(given["submit_s"]), np.bool_)
    for reason, field, is_out in NOT_A_JOB:
        out = is_out(given[field])
        if number := int(np.count_nonzero(kept & out)):
            excluded[reason] = excluded.get(reason, 0) + number
        kept &= ~out
    return kept, excluded


def _restarts_in_every_vc(submit_s: Floats, vc: NDArray[np.int32]) -> bool:
    """Whether the rows are blocks, one per VC, each in order and from 0 on: several clocks in one file."""
    starts = np.flatnonzero(np.diff(vc, prepend=vc[0])) if len(vc) else np.empty(0, np.int64)
    if not len(starts) or len(starts) + 1 != len(np.unique(vc)):
        return False
    steps = np.diff(submit_s)
    backwards = steps[starts - 1] < 0.0
    steps[starts - 1] = 0.0
    from_zero = submit_s[0] == 0.0 and bool(np.all(submit_s[starts] == 0.0))
    return from_zero and bool(np.any(backwards)) and bool(np.all(steps >= 0.0))


def _rows_by_submission(
    rows: NDArray[np.int64], of_all_s: Floats, lines: NDArray[np.int64], notes: list[str]
) -> NDArray[np.int64]:
    """Rows in order of submission; equal times keep the source's order."""
    submit_s = of_all_s[rows]
    earlier = np.flatnonzero(np.diff(submit_s) < 0.0)
    if not len(earlier):
        return rows
    first = int(lines[rows[earlier[0] + 1]])
    notes.append(
        f"rows submitted before the row above them: {len(earlier):,} (first: line {first}); "
        "all were put in order of submission"
    )
    return rows[np.argsort(submit_s, kind="stable")]
