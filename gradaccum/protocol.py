"""What this package needs of the job-side protocol: its names and one datagram.

Rule: the constants of `controller/wire/job.py` are repeated here, because cotenant itself may not be
installed where this runs; a test compares them.
"""

from __future__ import annotations

from typing import Final

from cotenant.checkpoint.guard import FAILED, tell_supervisor

PROTOCOL_VERSION: Final = 1
ENV_ACCUMULATION_STEPS: Final = "COTENANT_ACCUMULATION_STEPS"
ENV_ACCUMULATION_SCHEDULE: Final = "COTENANT_ACCUMULATION_SCHEDULE"
ENV_STEP_BATCH: Final = "COTENANT_STEP_BATCH"
ENV_ZERO_CODE: Final = "COTENANT_ZERO_CODE"


def tell_failed(error: str) -> None:
    """Let the supervisor know why accumulation was refused; the exception tells the user."""
    tell_supervisor(FAILED, what="accumulate", error=error)
