"""Slowdowns of pairs from steps counted, beside those that the controller learned. Pure but for the journal.

Rule: a step count and a clock, and no average over a window: from the moment at which two jobs both train on
one device, each with no other co-tenant, until that ends. What a job takes alone is the shortest it took in
runs in which nobody shared. The controller's own xi comes from medians over each job's last reports, which
lag behind a change of tenants by seconds: nothing for jobs of hours, much for jobs of seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from live_run import JobRow

from cotenant.controller.domain.events import ProgressSeen
from cotenant.controller.journal.journal import Journal
from cotenant.controller.journal.recovery import read_entry

TOGETHER_S_MIN: Final = 4.0
"""Shorter times are not counted: reports come every two seconds at most, and are up to half a second late."""

Marks = Sequence[tuple[float, int]]
"""(second of the journal, steps done), in order."""


def marks_of(state_dir: Path) -> dict[str, list[tuple[float, int]]]:
    """What each job said of its progress, by id, from a controller's journal."""
    found: dict[str, list[tuple[float, int]]] = {}
    journal = Journal(state_dir)
    try:
        for entry in journal.entries():
            event, _ = read_entry(journal, entry)
            if isinstance(event, ProgressSeen):
                found.setdefault(event.job_id, []).append((entry.now_s, event.step))
    finally:
        journal.close()
    return found


class Together(NamedTuple):
    """Two jobs that trained on one device, each with no other beside it."""

    first: JobRow
    second: JobRow
    from_s: float
    to_s: float


def counted(
    rows: Sequence[JobRow], marks: Mapping[str, Marks], kinds: Mapping[str, str], alone_s: Mapping[str, float]
) -> dict[tuple[str, str], float]:
    """(kind, beside kind) -> median over jobs of step time beside / alone.

    Args:
        alone_s: job name -> training time without a co-tenant.
    """
    seen: dict[tuple[str, str], list[float]] = {}
    for pair in pairs_of(rows):
        for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
            xi = slowed(one, marks.get(one.job_id, ()), alone_s[one.name], pair.from_s, pair.to_s)
            if xi is not None:
                seen.setdefault((kinds[one.name], kinds[other.name]), []).append(xi)
    return {pair: median(values) for pair, values in seen.items()}


def slowed(row: JobRow, marks: Marks, alone_s: float, from_s: float, to_s: float) -> float | None:
    """Step time in a stretch / step time alone; None if the stretch is too short to tell."""
    attempt = row.attempts[-1]
    assert attempt.first_step_s is not None and attempt.ended_s is not None
    whole = [(attempt.first_step_s, attempt.start_step + 1), *marks, (attempt.ended_s, attempt.end_step)]
    # Between marks, the first and the last of those inside: no step count is made up in between.
    inside = whole[bisect_left(whole, (from_s, -1)) : bisect_left(whole, (to_s + 1e-6, -1))]
    if len(inside) < 2 or inside[-1][0] - inside[0][0] < TOGETHER_S_MIN:
        return None
    steps = inside[-1][1] - inside[0][1]
    step_s = alone_s / max(1, attempt.end_step - attempt.start_step - 1)
    return (inside[-1][0] - inside[0][0]) / steps / step_s if steps > 0 else None


def pairs_of(rows: Sequence[JobRow]) -> list[Together]:
    """Stretches in which both train and neither has a third job on any of its devices."""
    found = []
    ended = [row for row in rows if len(row.attempts) == 1]
    for number, one in enumerate(ended):
        for other in ended[number + 1 :]:
            a, b = one.attempts[0], other.attempts[0]
            if not set(a.devices) & set(b.devices):
                continue
            from_s, to_s = max(_first_s(one), _first_s(other)), min(a.ended_s or 0.0, b.ended_s or 0.0)
            for third in rows:
                if third is one or third is other:
                    continue
                for c in third.attempts:
                    if set(c.devices) & (set(a.devices) | set(b.devices)) and c.launched_s < to_s:
                        end_s = c.ended_s or 0.0
                        if end_s > from_s:
                            # Loads count too: on a core they are felt.
                            from_s, to_s = (end_s, to_s) if c.launched_s <= from_s else (from_s, c.launched_s)
            if to_s - from_s >= TOGETHER_S_MIN:
                found.append(Together(one, other, from_s, to_s))
    return found


def _first_s(row: JobRow) -> float:
    first_s = row.attempts[0].first_step_s
    return float("inf") if first_s is None else first_s


def busy_s(rows: Sequence[JobRow]) -> float:
    """Device-seconds with a tenant, whatever it did."""
    total_s = 0.0
    devices = {device for row in rows for attempt in row.attempts for device in attempt.devices}
    for device in devices:
        spans = sorted(
            (a.launched_s, a.ended_s or a.launched_s)
            for row in rows
            for a in row.attempts
            if device in a.devices
        )
        end_s = 0.0
        for from_s, to_s in spans:
            total_s += max(0.0, to_s - max(from_s, end_s))
            end_s = max(end_s, to_s)
    return total_s
