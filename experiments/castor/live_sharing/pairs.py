"""How long pairs of live runs trained together, and what it was worth.

Rule: pairs are counted from the attempts' times; xi is what was counted from steps, else what the controller
learned from the jobs' step times.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

from experiments.castor.live_sharing import foretold
from experiments.castor.live_sharing.foretold import Side, found
from experiments.shared.live.run import JobRow
from experiments.shared.tables import header, row_of


class Made(NamedTuple):
    """Two jobs that were on one device at the same time."""

    first: str
    second: str
    together_s: float
    """Both training."""


def made(rows: Sequence[JobRow]) -> list[Made]:
    """Pairs of a run, as the attempts' times tell them."""
    met_on: list[Made] = []
    for one, other in combinations(rows, 2):
        together_s, met = 0.0, False
        for a in one.attempts:
            for b in other.attempts:
                if set(a.devices) & set(b.devices) and a.ended_s and b.ended_s:
                    met |= min(a.ended_s, b.ended_s) > max(a.launched_s, b.launched_s)
                    if a.first_step_s is not None and b.first_step_s is not None:
                        span_s = min(a.ended_s, b.ended_s) - max(a.first_step_s, b.first_step_s)
                        together_s += max(0.0, span_s)
        if met:
            met_on.append(Made(one.name, other.name, together_s))
    return met_on


def table(sides: Sequence[Side]) -> list[str]:
    """A row for each run in which jobs shared."""
    alone = foretold.steps_alone(side.run for side in sides)
    lines = header(
        ["", "s trained in pairs", "of it measured", "s gained", "jobs that joined", "`sjf` / here"]
    )
    for side in sides:
        if pairs := made(side.run.rows):
            all_s = sum(pair.together_s for pair in pairs)
            known_s, gained_s = gained(side, foretold.truest(side.run, alone))
            share = known_s / all_s if all_s else 0.0
            row = [f"{side.name}", f"{all_s:.0f}", f"{share:.0%}", f"{gained_s:+.0f}"]
            lines.append(row_of([*row, *joined(side, sides)]))
    return lines


def gained(side: Side, xi: foretold.Xi) -> tuple[float, float]:
    """Where both slowdowns are known: seconds of pairs together, and device-seconds of work beyond taking
    turns."""
    gained_s = known_s = 0.0
    for pair in made(side.run.rows):
        first, second = side.run.kinds[pair.first], side.run.kinds[pair.second]
        one, two = xi.get((first, second)), xi.get((second, first))
        if one is not None and two is not None:
            known_s += pair.together_s
            gained_s += pair.together_s * (1.0 / one + 1.0 / two - 1.0)
    return known_s, gained_s


def guests(rows: Sequence[JobRow]) -> set[str]:
    """Jobs that were put beside one that was there."""
    first = {row.job_id: row for row in rows}
    return {
        row.name
        for row in rows
        for mine in row.attempts
        for other_id in mine.co_tenants
        for theirs in first[other_id].attempts
        if theirs.launched_s < mine.launched_s < (theirs.ended_s or 0.0)
    }


def joined(side: Side, sides: Sequence[Side]) -> tuple[str, str]:
    """How many jobs were put beside another, and the median of what they took under sjf over what here."""
    alone, names = found(sides, "sjf"), guests(side.run.rows)
    if alone is None or not names:
        return f"{len(names)}", "-"
    ratios = [
        waited.jct_s / mine.jct_s
        for waited, mine in zip(alone.live, side.live, strict=True)
        if mine.name in names
    ]
    return f"{len(ratios)}", f"{median(ratios):.2f}"
