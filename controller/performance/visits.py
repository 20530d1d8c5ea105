"""Which s a job that is only measured uses in which of its steps. Pure.

Rule: it is fixed before the job starts, by the number of the step, so that all ranks keep to it without a
word between them. Nobody knows yet how long a step takes: each round visits every s, for twice as many steps
as the round before, so that after any time each s was visited about equally often, of a step of a millisecond
and of one of seconds.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

SCHEDULE_VARIABLE: Final = "COTENANT_ACCUMULATION_SCHEDULE"
"""Of a job's environment, by which it is told."""
CHOICES_MAX: Final = 5
"""Different s at most: 1, 2, 4, 8, 16."""
WARM_UP_STEPS: Final = 2
"""At a visit's beginning, not counted: allocators and caches settle, and what is made once is made."""
COUNTED_STEPS_MIN: Final = 3
LOAD_STEPS: Final = 3
"""Further steps of the first visit: what only the first steps of a process do."""
ROUNDS: Final = 10


class Visit(NamedTuple):
    """After `start` completed steps s is used, after `until` no longer."""

    start: int
    until: float
    s: int


def choices(batch_size: int | None) -> tuple[int, ...]:
    """The s to visit: 1 and its doubles, as far as the batch divides evenly; where it is not known, as if it
    did."""
    doubles = (1 << at for at in range(CHOICES_MAX))
    return tuple(s for s in doubles if batch_size is None or batch_size % s == 0)


def plan_visits(batch_size: int | None) -> tuple[Visit, ...]:
    """The visits of one job, and an endless one behind them; one alone where the batch cannot be split."""
    every = choices(batch_size)
    visits, start = list[Visit](), 0
    for turn in range(ROUNDS if len(every) > 1 else 0):
        for s in every:
            until = start + ((WARM_UP_STEPS + COUNTED_STEPS_MIN) << turn) + (LOAD_STEPS if not start else 0)
            visits.append(Visit(start, until, s))
            start = until
    return (*visits, Visit(start, inf, 1))


def schedule_text(visits: tuple[Visit, ...]) -> str:
    """The visits in the form of COTENANT_ACCUMULATION_SCHEDULE."""
    return ",".join(f"{visit.start}:{visit.s}" for visit in visits)


def parse_schedule(text: str) -> tuple[Visit, ...]:
    """The visits in such a text.

    Raises:
        ValueError: it is no schedule.
    """
    entries = [tuple(map(int, part.split(":"))) for part in text.split(",")]
    if any(len(entry) != 2 for entry in entries):
        raise ValueError(f"a schedule looks like 0:1,8:2, got {text!r}")
    ends = [*(start for start, _ in entries[1:]), inf]
    return tuple(Visit(start, until, s) for (start, s), until in zip(entries, ends, strict=True))
