"""What the agent wants of an attempt that is to stop, and what follows from it. Pure.

Rule: a job that can resume is asked to save and stop at an agreed step, for as long as the deadline allows;
every other job is made to leave. All words of the agent taken together count: the earliest deadline, and a
stop without a save overrides one with.
"""

from __future__ import annotations

from math import inf
from typing import Final, Literal

import msgspec

from cotenant.agent.ipc.channel import StopNow
from cotenant.agent.supervisor.core.coordination import MEMBER_PERIOD_S, Coordination
from cotenant.agent.supervisor.core.departure import KILL_GRACE_S
from cotenant.agent.supervisor.core.exit_classifier import Cause

LOADING_GRACE_S: Final = 5.0
"""Between SIGTERM and SIGKILL for a job that has nothing to lose."""
PLAIN_GRACE_S: Final = 30.0
"""For a script that may want to save by itself on SIGTERM."""
SAVE_RETRY_S: Final = 5.0


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """The processes have to go, for this reason."""

    cause: Cause
    grace_s: float


class StopWish(msgspec.Struct, kw_only=True):
    """What the agent wants, all its words taken together."""

    save: bool
    asked_s: float
    until_s: float
    allowed_s: float
    reason: str
    is_asked: bool = False
    retry_s: float = inf

    @classmethod
    def asked(cls, word: StopNow, now_s: float) -> StopWish:
        return cls(
            save=word.save,
            asked_s=now_s,
            until_s=now_s + word.deadline_s,
            allowed_s=word.deadline_s,
            reason=word.reason,
        )

    def asked_again(self, word: StopNow, now_s: float) -> None:
        self.until_s = min(self.until_s, now_s + word.deadline_s)
        if self.save and not word.save:
            self.save, self.reason = False, word.reason

    @property
    def patience_s(self) -> float:
        """Until when a word from ranks elsewhere is waited for."""
        return min(self.until_s, self.asked_s + 2 * MEMBER_PERIOD_S)

    def alarms(self, coordination: Coordination) -> list[float]:
        waits = [self.patience_s] if coordination.waits_for_members else []
        return [self.until_s, self.retry_s, *waits]

    def judge(
        self, coordination: Coordination, now_s: float, *, is_loading: bool
    ) -> Leave | Literal["ask", "wait"]:
        """What to do now; `ask`: propose a step to stop at."""
        if self.save and coordination.waits_for_members and now_s < self.patience_s:
            return "wait"
        if not self.save or not coordination.can_save:
            return Leave(cause="stop", grace_s=grace_s(self, is_loading=is_loading))
        if now_s >= self.until_s:
            return Leave(cause="deadline", grace_s=KILL_GRACE_S)
        if not self.is_asked or now_s >= self.retry_s:
            self.is_asked, self.retry_s = True, inf
            return "ask"
        if coordination.gave_up("stop"):
            return Leave(cause="no-agreement", grace_s=KILL_GRACE_S)
        return "wait"


def grace_s(stop: StopWish | None, *, is_loading: bool) -> float:
    """Between SIGTERM and SIGKILL, when the job is to end without a save."""
    if is_loading:
        return LOADING_GRACE_S
    allowed_s = stop.allowed_s if stop is not None else PLAIN_GRACE_S
    return max(1.0, min(allowed_s, PLAIN_GRACE_S))
