"""Exact gradient accumulation inside the user's own training process.

Rule: standard library and torch only, Python 3.9 and torch 2.5 upwards, nothing of cotenant besides the
picture of what a script reaches. With s = 1, and outside cotenant, `split` and `backward` do what the plain
loop does.

`cotenant.checkpoint` does not import this package. It finds it in `sys.modules` and uses `PROGRESS` (how many
steps are complete, the latest s and loss), `steps_at` and `refusal`.

What needs torch is imported when it is asked for: `python -m cotenant.gradaccum.launch` must not load it
before the script does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cotenant.gradaccum.schedule import batch_size
from cotenant.gradaccum.schedule import PROGRESS, Schedule

if TYPE_CHECKING:
    from cotenant.gradaccum.exactness import Refused, refusal
    from cotenant.gradaccum.explicit import backward, split

__all__ = [
    "PROGRESS",
    "Refused",
    "Schedule",
    "backward",
    "batch_size",
    "configure",
    "launch",
    "refusal",
    "schedule",
    "split",
    "steps_at",
    "zerocode",
]

_HOME = {"Refused": "exactness", "refusal": "exactness", "backward": "explicit", "split": "explicit"}


def __getattr__(name: str) -> Any:
    """The parts that need torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    globals()[name] = value = getattr(module, name)
    return value


def configure(schedule: Schedule | None) -> None:
    """Use this schedule instead of the environment's (None: read the environment again)."""
    PROGRESS.schedule = schedule


def steps_at(step: int) -> int:
    """s for the step that follows `step` completed ones."""
    return PROGRESS.steps_at(step)
