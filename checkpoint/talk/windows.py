"""Turns of the accumulation steps: for so many steps use s instead of what was ordered.

Rule: a turn ends by itself. Nobody has to be alive to take it back, and what is recorded of it is enough to
repeat it: a checkpoint's history holds the past and, behind it, what was agreed for the steps to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

History = Sequence[tuple[int, int]]
"""(from step, s), ascending."""


@dataclass(frozen=True)
class WindowPlace:
    """After `start` completed steps use s; after `until` no longer."""

    start: int
    until: int
    s: int


def agreed_ahead(turns: Iterable[WindowPlace], step: int, ordered: int) -> tuple[tuple[int, int], ...]:
    """What the history says behind `step`: the turns that are not over, with the ordered s between them."""
    entries: dict[int, int] = {}
    for turn in turns:
        if turn.start >= step:
            entries[turn.start] = turn.s
        entries[turn.until] = ordered
    return tuple(sorted((start, s) for start, s in entries.items() if start >= step))


def recorded(history: History, step: int) -> tuple[History, tuple[WindowPlace, ...]]:
    """A recorded history, cut at `step`: what was used before it, and what a resumed run repeats.

    An entry for `step` itself or later can only have been agreed beforehand. The last of them ends the last
    turn; from there on the order of the resumed attempt holds.
    """
    past = [entry for entry in history if entry[0] < step]
    ahead = [entry for entry in history if entry[0] >= step]
    if not ahead:
        return past, ()
    if ahead[0][0] > step and past:
        ahead.insert(0, (step, past[-1][1]))
    turns = [WindowPlace(start, until, s) for (start, s), (until, _) in zip(ahead, ahead[1:])]
    return past, tuple(turns)
