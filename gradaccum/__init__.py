"""Exact gradient accumulation inside the user's own training process.

Rule: standard library and torch only, Python 3.9 and torch 2.5 upwards, nothing of cotenant besides. With
s = 1, and outside cotenant, `split` and `backward` do what the plain loop does.

Neither this package nor `cotenant.checkpoint` imports the other. `checkpoint` finds this one in `sys.modules`
and uses `PROGRESS` (how many steps are complete, the latest s and loss), `steps_at` and `refusal`.
"""

from __future__ import annotations

from cotenant.gradaccum.exactness import Refused, refusal
from cotenant.gradaccum.schedule import PROGRESS, Schedule
from cotenant.gradaccum.split import backward, split

__all__ = ["PROGRESS", "Refused", "Schedule", "backward", "configure", "refusal", "split"]


def configure(schedule: Schedule | None) -> None:
    """Use this schedule instead of the environment's (None: read the environment again)."""
    PROGRESS.schedule = schedule


def steps_at(step: int) -> int:
    """s for the step that follows `step` completed ones."""
    return PROGRESS.steps_at(step)
