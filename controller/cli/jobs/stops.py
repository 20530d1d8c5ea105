"""Where a trial stops a command, and which kinds of places no stop of it was at.

Rule: pure. Stops are chosen from what an undisturbed run has shown. An epoch is one pass of the innermost
loop around a step; where the script's loops do not say how long it is, that is said, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

import msgspec

FIRST: Final = 3
"""Before this step a command is still writing its state for the first time."""
APART: Final = 3
"""A resume is proven over two steps, and then the next stop may come."""
TRIES: Final = 3
"""Of one kind of place, where a command refuses to stop."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes: its steps and, where they are seen, its epochs."""

    steps: int
    epoch_steps: int | None = None
    why_no_epochs: str = ""

    def is_epoch_end(self, step: int) -> bool:
        return self.epoch_steps is not None and step % self.epoch_steps == 0

    def epoch_of(self, step: int) -> int:
        """The number of the epoch that a step is part of, from 1; 0 where epochs were not seen."""
        return 0 if self.epoch_steps is None else (step - 1) // self.epoch_steps + 1

    def place_of(self, step: int) -> str:
        """The kind of place after a step, in words; empty where epochs were not seen."""
        if self.epoch_steps is None:
            return ""
        return f"{'at the end of' if self.is_epoch_end(step) else 'in'} epoch {self.epoch_of(step)}"


LengthTold = tuple[int | None, tuple[int, ...], str]
"""What a rank tells of its length: steps in all, the turns of its loops from the outside in, and a note."""


def course_of(steps: int, lengths: Iterable[LengthTold], whole: bool) -> Course:
    """The course of a run that made so many steps and told these lengths. whole: it came to its own end."""
    told = list(lengths)
    totals = {(total, loops) for total, loops, _ in told if total is not None}
    note = told[-1][2].removeprefix("length not seen: ") if told else "the command tells none of its loops"
    if len(totals) > 1:
        return Course(steps=steps, why_no_epochs="it trains in several loops, one after the other")
    total, loops = next(iter(totals), (None, ()))
    if total is None or len(loops) < 2:
        return Course(steps=steps, why_no_epochs="its steps are in one loop" if loops else note)
    each, left = divmod(total, prod(loops[:-1]))
    if left or not each or (whole and steps > total):
        return Course(steps=steps, why_no_epochs=f"{note}, and they have different numbers of steps")
    return Course(steps=steps, epoch_steps=each)


def plan_stops(course: Course) -> tuple[int, ...]:
    """After which steps to stop, increasing: in the first epoch, at an epoch's end, in a later epoch, near
    the end."""
    steps, each = course.steps, course.epoch_steps
    if each is None or each >= steps:
        wanted = [max(FIRST, steps // 5), steps // 2]
    else:
        wanted = _stops_in_epochs(steps, each)
    chosen: list[int] = []
    for step in (*wanted, steps - FIRST):
        if 0 < step < steps and (not chosen or step >= chosen[-1] + APART):
            chosen.append(step)
    return tuple(chosen) or tuple(range(max(1, steps - 1), steps))


def _stops_in_epochs(steps: int, each: int) -> list[int]:
    early = max(FIRST, each // 4)
    end = _multiple_from(each, early + APART)
    stops = [early]
    if early >= each or end >= steps:  # A stop between two epochs shows more than one within the first.
        end, stops = _multiple_from(each, FIRST), []
    stops.append(end)
    middles = [start + each // 2 for start in range(end, steps, each) if each > 1]
    middles = [middle for middle in middles if end + APART <= middle < steps]
    return stops + middles[len(middles) // 2 :][:1]


def _multiple_from(each: int, least: int) -> int:
    return -(-least // each) * each


def next_stop(course: Course, planned: Sequence[int], refused: int, now: int, tries: int) -> int | None:
    """Where to stop a command that is at step `now`, and has refused for the `tries`-th time: at a place of
    the same kind, else at a planned one; None: nowhere any more."""
    if tries <= TRIES:
        each = course.epoch_steps or 1
        alike = _multiple_from(each, max(refused, now) + 1) if course.is_epoch_end(refused) else now + 2
        if refused < alike < course.steps:
            return alike
    return next((step for step in planned if step > max(refused, now + 1)), None)


def places_not_reached(course: Course, stops: Sequence[int]) -> list[str]:
    """Kinds of places at which a run can be stopped, and this one was not, each with the reason."""
    each, found = course.epoch_steps, []
    if each is None:
        return [f"no stop is known to be at an epoch's end: epochs were not seen ({course.why_no_epochs})"]
    if course.steps <= each:
        return [f"no stop at an epoch's end or in a later epoch: {course.steps} steps are within one epoch"]
    within = [step for step in stops if not course.is_epoch_end(step)]
    if not any(step < each for step in stops):
        found.append(f"no stop in the first epoch: it has {each} steps")
    if len(within) == len(stops):
        found.append("no stop at an epoch's end: none was accepted there")
    if not any(step > each for step in within):
        found.append(f"no stop within a later epoch: they have {each} steps")
    return found
