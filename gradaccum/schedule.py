"""How many accumulation steps (s) a training step uses, by the number of steps completed before it; and how
many rows a worker takes in a step of an elastic job.

Rule: one process has one count of completed steps. `cotenant.checkpoint` sets it where it is used too, so
that after a resume the schedule goes on where it was.

Rule: the step's batch stays what it is. A step is made of `rows x workers` samples, as the user has said it
of the most workers that the job takes. On fewer of them each takes as many more rows, in as many more
micro-batches as keep each as small.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cotenant.checkpoint.talk import protocol

STEPS_MAX: Final = 4096


@dataclass(frozen=True)
class Schedule:
    """The accumulation steps over time: (from step, s) in ascending order; the first entry is for step 0."""

    entries: tuple[tuple[int, int], ...] = ((0, 1),)

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.entries]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"an accumulation schedule starts at step 0 and ascends, got {self.entries}")
        if not all(1 <= s <= STEPS_MAX for _, s in self.entries):
            raise ValueError(f"accumulation steps must be between 1 and {STEPS_MAX}, got {self.entries}")

    def steps_at(self, completed: int) -> int:
        """s for the step that follows `completed` completed ones."""
        steps = 1
        for start, s in self.entries:
            if start > completed:
                break
            steps = s
        return steps

    def change_after(self, completed: int) -> int | None:
        """The first step count above `completed` from which another s holds; None: there is none."""
        return next((start for start, _ in self.entries if start > completed), None)

    @staticmethod
    def parse(text: str) -> Schedule:
        """`0:2,120:1`: s = 2 from step 0, s = 1 from step 120."""
        entries = []
        for part in text.split(","):
            start, colon, s = part.strip().partition(":")
            if not (colon and start.isdecimal() and s.isdecimal()):
                raise ValueError(
                    f"{protocol.ENV_ACCUMULATION_SCHEDULE} must look like 0:2,120:1 (step:s, ...), "
                    f"got {text!r}"
                )
            entries.append((int(start), int(s)))
        return Schedule(tuple(entries))

    @staticmethod
    def from_environment(env: Mapping[str, str]) -> Schedule:
        """The schedule wins over the plain number; neither means s = 1."""
        text = env.get(protocol.ENV_ACCUMULATION_SCHEDULE)
        if text:
            return Schedule.parse(text)
        steps = env.get(protocol.ENV_ACCUMULATION_STEPS)
        if not steps:
            return Schedule()
        if not steps.isdecimal() or int(steps) < 1:
            raise ValueError(
                f"{protocol.ENV_ACCUMULATION_STEPS} must be a whole number of at least 1, got {steps!r}"
            )
        return Schedule(((0, int(steps)),))


@dataclass
class Progress:
    """The process-wide state of accumulation. `cotenant.checkpoint`, if used, counts the steps in it."""

    schedule: Schedule | None = None
    completed: int = 0
    counted_for_us: bool = False
    """Someone else counts steps (a checkpoint Session); else the end of each `split` is one."""
    last_steps: int = 1
    first_rows: list[int] = field(default_factory=list)
    """Of the first batches that a script's modules were called with, where the zero-code hook sees them."""
    is_equivalent: bool = False
    """The parts of a batch have drawn other random numbers than the whole batch."""
    last_loss: Any = None
    between_parts: Callable[[], None] | None = None
    """Called between the parts of a split batch, where the process may have to wait for a co-tenant."""
    before_save: Callable[[], None] | None = None
    """Called before what was trained is saved: it may end the attempt instead."""
    explicit: bool = False
    """The script splits its batches itself with `split` or `backward`: nobody else may."""

    @property
    def splits(self) -> bool:
        """More than one micro-batch is ordered for some step of this process."""
        self.steps_now()
        return self.schedule is not None and any(s > 1 for _, s in self.schedule.entries)

    def steps_now(self) -> int:
        return self.steps_at(self.completed)

    def steps_at(self, completed: int) -> int:
        """s for the step that follows `completed` ones."""
        return self._schedule().steps_at(completed)

    def change_after(self, completed: int) -> int | None:
        """After how many completed steps, more than these, another s holds; None: never."""
        return self._schedule().change_after(completed)

    def _schedule(self) -> Schedule:
        if self.schedule is None:
            self.schedule = Schedule.from_environment(os.environ)
        return self.schedule

    def part_ended(self) -> None:
        """A part of a batch is done, and another follows."""
        if self.between_parts is not None:
            self.between_parts()

    def split_ended(self) -> None:
        if not self.counted_for_us:
            self.completed += 1


PROGRESS: Final = Progress()


# --- A worker's rows -------------------------------------------------------------------------------


def batch_size(rows: int) -> int:
    """What to give a DataLoader whose batches have `rows` rows when the job runs on all of its workers.

    Outside an elastic job that is `rows`. Call it once torch.distributed is set up, or after the launcher has
    set WORLD_SIZE.

    Raises:
        ValueError: the step's batch cannot be divided equally among these workers.
    """
    said = os.environ.get(protocol.ENV_STEP_BATCH)
    if not said:
        return rows
    _, _, most = said.partition("x")
    workers = _workers()
    part, rest = divmod(rows * int(most), workers)
    if rest:
        raise ValueError(f"{rows} rows on each of {most} workers cannot be divided equally among {workers}")
    return part


def _workers() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))
