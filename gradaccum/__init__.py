"""Exact gradient accumulation inside the user's own training process.

Rule: standard library and torch only, Python 3.9 and torch 2.5 upwards, nothing of cotenant besides. With
s = 1, and outside cotenant, `split` and `backward` do what the plain loop does.

The functions below `backward` are the hook through which `cotenant.checkpoint` finds this package in
`sys.modules`: neither imports the other.
"""

from __future__ import annotations

from typing import Any

from cotenant.gradaccum.exactness import Refused, refusal
from cotenant.gradaccum.schedule import PROGRESS, Schedule
from cotenant.gradaccum.split import backward, split

__all__ = ["Refused", "Schedule", "backward", "configure", "refusal", "split"]


def configure(schedule: Schedule | None) -> None:
    """Use this schedule instead of the environment's (None: read the environment again)."""
    PROGRESS.schedule = schedule


def set_completed(step: int) -> None:
    """From now on the caller counts: `step` optimizer steps are complete since the job began."""
    PROGRESS.counted_for_us = True
    PROGRESS.completed = step


def steps_at(step: int) -> int:
    """s for the step that follows `step` completed ones."""
    return PROGRESS.steps_at(step)


def last_steps() -> int:
    """s of the latest `split`."""
    return PROGRESS.last_steps


def last_loss() -> Any:
    """The latest `backward`'s loss (a detached tensor), None if there was none."""
    return PROGRESS.last_loss
