"""What this start of the agent knows of an attempt that has not ended, beyond what is on disk.

Rule: lost with the agent, and found out again: nothing in here may be needed to obey a command twice.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.agent.daemon.core.memory import Attempt
from cotenant.agent.ipc.channel import CoTenantsChanged
from cotenant.agent.ipc.records import Result, Status

STOP_GRACE_S: Final = 60.0
"""How long after a stop's deadline a supervisor may take before it is ended as well."""
LEASE_NEWS_RATIO: Final = 0.1
"""A renewal is passed on where a supervisor's own countdown is this part of the lease behind."""
_NEVER: Final = float("inf")


class LeaseTold(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    left_s: float | None

    def believed_left_s(self, now_s: float) -> float | None:
        """What the supervisor's countdown stands at."""
        return None if self.left_s is None else self.left_s - (now_s - self.at_s)


class Live:
    def __init__(self) -> None:
        self.cleaning = False
        self.releasing: Result | None = None
        """How it ended by its supervisor's word, while its devices are waited for."""
        self.ended_s = _NEVER
        """When that was."""
        self.connected = False
        self.status: Status | None = None
        self.started_s: float | None = None
        """When this agent first knew that its processes run."""
        self.stop_asked_s: float | None = None
        self.lease_told: LeaseTold | None = None
        self.co_tenants_told = CoTenantsChanged(alone=True)
        """What its supervisor believes; it starts with this belief."""

    @property
    def is_there(self) -> bool:
        """A supervisor of it runs, or is taken to."""
        return not self.cleaning and self.releasing is None

    def is_lease_news(self, left_s: float | None, full_s: float | None, now_s: float) -> bool:
        """Whether the supervisor's own countdown is too far from what is left of the lease."""
        if self.lease_told is None:
            return True
        believed_s = self.lease_told.believed_left_s(now_s)
        if left_s is None or believed_s is None or full_s is None:
            return not (left_s is None and believed_s is None)
        return left_s - believed_s >= LEASE_NEWS_RATIO * full_s

    def quiet_until_s(self, attempt: Attempt, quiet_start_s: float) -> float:
        """When a job without hello counts as running; a job that uses the library says so by itself."""
        if self.started_s is None or not self.is_there or attempt.first_step or attempt.first_step_assumed:
            return _NEVER
        if attempt.capabilities or attempt.uses_library:
            return _NEVER
        return self.started_s + quiet_start_s

    def overdue_s(self, attempt: Attempt) -> float:
        """When a supervisor that was told to stop is ended as well."""
        if not self.is_there or attempt.stop is None or self.stop_asked_s is None:
            return _NEVER
        return self.stop_asked_s + attempt.stop.deadline_s + STOP_GRACE_S
