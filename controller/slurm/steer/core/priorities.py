"""The priorities that give Slurm's waiting jobs an order.

Rule: as few priorities as possible are set. Jobs that already stand right among each other, by priorities
that were set before, keep them; the others get values in the gaps between. Only where a gap is too small all
are numbered anew. Values lie well inside what Slurm takes, none is 0 (which would hold the job), and they are
above those that the multifactor plugin computes: a job that has not been given one yet stands behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final

from cotenant.controller.slurm.steer.core.queue import QueueJob

LOWEST: Final = 1_000_000_000
HIGHEST: Final = 3_900_000_000
GAP: Final = 1_000_000
"""Between neighbours, where there is room: twenty jobs can come in between before all are numbered anew."""


def changes(order: Sequence[QueueJob], touched: Collection[int], most: int) -> dict[int, int]:
    """What to set, by job, so that these stand in this order, the first ones first, `most` at a time.
    `touched`: whose priority is ours, and may stay."""
    wanted = _fill_gaps(order, touched) or _anew(order)
    found = (
        (job.job_id, priority)
        for job, priority in zip(order, wanted, strict=True)
        if priority != job.priority or job.job_id not in touched
    )
    return dict(islice(found, most))


def _fill_gaps(order: Sequence[QueueJob], touched: Collection[int]) -> list[int] | None:
    """Finds priorities in the gaps between those that others have. None: somewhere there is no room."""
    ours = [
        (place, job.priority)
        for place, job in enumerate(order)
        if job.job_id in touched and LOWEST <= job.priority <= HIGHEST
    ]
    kept = _falling(ours)
    if not kept:
        return None
    wanted: list[int] = []
    for (before, above), (place, below) in zip([(-1, None), *kept], [*kept, (len(order), None)], strict=True):
        between = place - before - 1
        if above is None:
            assert below is not None
            above = min(below + GAP * (between + 1), HIGHEST + 1)
        elif below is None:
            below = max(above - GAP * (between + 1), LOWEST - 1)
        if above - below <= between:
            return None
        wanted += [above - (above - below) * nth // (between + 1) for nth in range(1, between + 1)]
        if place < len(order):
            wanted.append(below)
    return wanted


def _anew(order: Sequence[QueueJob]) -> list[int]:
    gap = min(GAP, (HIGHEST - LOWEST) // (len(order) + 1))
    assert gap > 0, f"{len(order)} jobs are more than there are priorities"
    middle = (LOWEST + HIGHEST + gap * len(order)) // 2
    return [middle - gap * place for place in range(1, len(order) + 1)]


def _falling(ours: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of (place, priority) whose priorities fall, others in between left out."""
    ends: list[int] = []  # Of runs of each length, the greatest last priority, negated.
    last: list[int] = []
    before: list[int | None] = []
    for index, (_, priority) in enumerate(ours):
        length = bisect_left(ends, -priority)
        before.append(last[length - 1] if length else None)
        if length == len(ends):
            ends.append(-priority)
            last.append(index)
        else:
            ends[length], last[length] = -priority, index
    found: list[tuple[int, int]] = []
    at = last[-1] if last else None
    while at is not None:
        found.append(ours[at])
        at = before[at]
    return found[::-1]
