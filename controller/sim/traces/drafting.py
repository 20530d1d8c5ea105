"""From the rows of a source to a trace: its clock in seconds, what is left out, in which order, and what is
said about it.

Rule: a row that is wrong is refused by its reader, with its line; a row that is right but no job to schedule
is left out here, and counted by reason. Nothing is dropped without a count.

Rule: a log that names no time zone is read as if its clock had never been set back or forward; a job that
runs across such a night is an hour off.
"""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim.traces.trace import Floats, Labels, RecordedJobs, Trace, TraceProblem

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


NO_SUBMISSION = "no submission time"
NO_DURATION = "never ended, or no duration"
ZERO_DURATION = "zero duration"
BACKWARDS = "ended before it started"
NO_GPU_COUNT = "no GPU count"
CPU_ONLY = "no GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft(RecordedJobs):
    """Columns as read, in the source's order, shape (n,). NaN = the source does not have it."""

    lines: NDArray[np.int64]
    """Line of each row in its file, for messages."""
    user: Labels | None = None
    vc: Labels | None = None
    organisation: Labels | None = None
    model: Labels | None = None
    gpu_type: Labels | None = None
    state: Labels | None = None
    hp: NDArray[np.bool_] | None = None


def finish(draft: Draft) -> Trace:
    """The trace of a draft: rows that are no jobs left out, the others in order of submission.

    Raises:
        TraceProblem: no row is left.
    """
    kept, excluded = _job_rows(draft)
    n = len(draft.submit_s)
    if not np.any(kept):
        counts = ", ".join(f"{reason}: {number:,}" for reason, number in excluded.items())
        raise TraceProblem(
            f"no job is left of {n + sum(draft.excluded.values()):,} rows ({counts or 'there are none'})",
            file=draft.name,
        )
    vc = draft.vc or Labels.none(n)
    rows = np.flatnonzero(kept)
    clock_per_vc = _restarts_in_every_vc(draft.submit_s[rows], vc.codes[rows])
    notes = list(draft.notes)
    if not clock_per_vc:
        rows = _rows_by_submission(rows, draft, notes)

    def column(labels: Labels | None) -> Labels:
        return Labels.none(len(rows)) if labels is None else labels.take(rows)

    return Trace(
        name=draft.name,
        source=draft.source,
        licence=draft.licence,
        synthetic=draft.synthetic,
        submit_s=draft.submit_s[rows],
        duration_s=draft.duration_s[rows],
        gpus=draft.gpus[rows],
        job_ids=tuple(draft.job_ids[row] for row in rows.tolist()) if draft.job_ids else (),
        user=column(draft.user),
        vc=column(vc),
        organisation=column(draft.organisation),
        model=column(draft.model),
        gpu_type=column(draft.gpu_type),
        state=column(draft.state),
        hp=np.zeros(len(rows), np.bool_) if draft.hp is None else draft.hp[rows],
        clock_per_vc=clock_per_vc,
        excluded=excluded,
        notes=tuple(notes),
    )


def _job_rows(draft: Draft) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Which rows are jobs; the first reason that applies is the one counted."""
    kept = np.ones(len(draft.submit_s), np.bool_)
    excluded = dict(draft.excluded)
    for reason, out in (
        (CPU_ONLY, draft.gpus == 0.0),
        (NO_GPU_COUNT, np.isnan(draft.gpus)),
        (NO_SUBMISSION, np.isnan(draft.submit_s)),
        (NO_DURATION, np.isnan(draft.duration_s)),
        (BACKWARDS, draft.duration_s < 0.0),
        (ZERO_DURATION, draft.duration_s == 0.0),
    ):
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


def _rows_by_submission(rows: NDArray[np.int64], draft: Draft, notes: list[str]) -> NDArray[np.int64]:
    """Rows in order of submission; equal times keep the source's order."""
    submit_s = draft.submit_s[rows]
    earlier = np.flatnonzero(np.diff(submit_s) < 0.0)
    if not len(earlier):
        return rows
    first = int(draft.lines[rows[earlier[0] + 1]])
    notes.append(
        f"rows submitted before the row above them: {len(earlier):,} (first: line {first}); "
        "all were put in order of submission"
    )
    return rows[np.argsort(submit_s, kind="stable")]
