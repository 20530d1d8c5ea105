"""Slowdowns of pairs from steps counted, beside those that the controller learned. Pure but for the journal.

Rule: a step count and a clock, and no average over a window: from the moment at which two jobs both train on
one device, each with no other co-tenant, until that ends. What a kind takes alone is counted in the same way,
in runs in which nobody shared. The controller's own xi comes from medians over each job's last reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations, product
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from cotenant.controller.domain import events as ev
from cotenant.controller.store import Journal, read_entry
from experiments.shared.live.run import JobRow

TOGETHER_S_MIN: Final = 6.0
"""Shorter times are not counted: reports come every two seconds at most, and are up to half a second late."""

Marks = Sequence[tuple[float, int]]
"""(second since the epoch, steps done), in order."""


def marks_of(state_dir: Path) -> dict[str, list[tuple[float, int]]]:
    """What each job said of its progress, by id, from a controller's journal."""
    found: dict[str, list[tuple[float, int]]] = {}
    journal = Journal(state_dir)
    try:
        for entry in journal.entries():
            event, _ = read_entry(journal, entry)
            if isinstance(event, ev.ProgressSeen):
                found.setdefault(event.job_id, []).append((entry.wall_s, event.step))
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
    rows: Sequence[JobRow], marks: Mapping[str, Marks], kinds: Mapping[str, str], alone: Mapping[str, float]
) -> dict[tuple[str, str], float]:
    """(kind, beside kind) -> median over stretches of step time beside / alone.

    Args:
        alone: kind -> seconds of a step alone.
    """
    seen: dict[tuple[str, str], list[float]] = {}
    for pair in pairs_of(rows):
        for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
            step_s = pace_s(marks.get(one.job_id, ()), pair.from_s, pair.to_s)
            kind = kinds[one.name]
            if step_s is not None and kind in alone:
                seen.setdefault((kind, kinds[other.name]), []).append(step_s / alone[kind])
    return {pair: median(values) for pair, values in seen.items()}


def alone_step_s(
    rows: Sequence[JobRow], marks: Mapping[str, Marks], kinds: Mapping[str, str]
) -> dict[str, list[float]]:
    """Kind -> step times of its jobs in a run in which nobody shared, by the same way of counting."""
    found: dict[str, list[float]] = {}
    for row in rows:
        step_s = pace_s(marks.get(row.job_id, ()), 0.0, float("inf"))
        if step_s is not None:
            found.setdefault(kinds[row.name], []).append(step_s)
    return found


def pace_s(marks: Marks, from_s: float, to_s: float) -> float | None:
    """Seconds of a step between the first and the last mark inside; None where they are too close.

    Nothing is made up between marks, and a job's end is none: after its last step it evaluates for a while.
    """
    inside = [(at_s, step) for at_s, step in marks if from_s <= at_s <= to_s]
    if len(inside) < 2 or inside[-1][0] - inside[0][0] < TOGETHER_S_MIN or inside[-1][1] <= inside[0][1]:
        return None
    return (inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1])


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


def beside_loads_s(rows: Sequence[JobRow]) -> float:
    """Seconds that jobs trained while another loaded on one of their devices, summed over jobs."""
    total_s = 0.0
    for one, other in permutations(rows, 2):
        for a, b in product(one.attempts, other.attempts):
            if set(a.devices) & set(b.devices) and a.first_step_s is not None and a.ended_s is not None:
                loaded_s = b.first_step_s if b.first_step_s is not None else b.launched_s
                total_s += max(0.0, min(a.ended_s, loaded_s) - max(a.first_step_s, b.launched_s))
    return total_s


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
