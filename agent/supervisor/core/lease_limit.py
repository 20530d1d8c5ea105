"""The supervisor's own countdown of the lease: save at 60 % of it, stop the ranks at 80 %. Pure.

Rule: after the lease's end the controller may start the job elsewhere, so a job that could be started there
is gone by then, whatever became of agent and network; a job that could not is left alone.
"""

from __future__ import annotations

from math import inf
from typing import Final, Literal

import msgspec

from cotenant.agent.ipc.records import Order, Status
from cotenant.agent.supervisor.core.departure import KILL_GRACE_S, TERMINATE_S

SAVE_AT_LEASE: Final = 0.6
STOP_AT_LEASE: Final = 0.8


QUIET_S: Final = 60.0
"""A job that has not said hello for this long does not know the library."""


def may_run_elsewhere(order: Order, status: Status, *, has_said_hello: bool, quiet_s: float) -> bool:
    """Whether the controller could requeue the job when the lease ends: only if it can resume. `quiet_s`:
    since its start.

    Before the first step that may not be known here yet, and nothing is lost by stopping. A job that was
    started from a checkpoint goes back to it elsewhere, whatever it says of itself now.
    """
    if order.start.resume_step > 0:
        return True
    if status.resumable is not None:
        return status.resumable
    if status.first_step is not None:
        return False
    return has_said_hello or quiet_s < QUIET_S


class LeaseLimit(msgspec.Struct, kw_only=True):
    ends_s: float
    full_s: float
    is_saved: bool = False
    is_judged: bool = False

    @property
    def save_s(self) -> float:
        return self.ends_s - (1.0 - SAVE_AT_LEASE) * self.full_s

    @property
    def stop_s(self) -> float:
        return self.ends_s - (1.0 - STOP_AT_LEASE) * self.full_s

    def grace_s(self, now_s: float) -> float:
        """Between SIGTERM and SIGKILL: half of what is left. Who was frozen until the lease was over has
        none: the job may run elsewhere by now."""
        return max(0.0, min(KILL_GRACE_S, (self.ends_s - now_s) / 2))

    def is_over(self, now_s: float) -> bool:
        return now_s >= self.ends_s

    @property
    def terminate_s(self) -> float:
        """For MPS daemons to take their clients back: a quarter."""
        return min(TERMINATE_S, (1.0 - STOP_AT_LEASE) / 4 * self.full_s)

    @property
    def next_alarm_s(self) -> float:
        if self.is_judged:
            return inf
        return self.stop_s if self.is_saved else self.save_s

    def renewed(self, ends_s: float, full_s: float, now_s: float) -> LeaseLimit:
        """A word that says nothing new (the agent is itself cut off) must not make us save again."""
        lease = LeaseLimit(ends_s=ends_s, full_s=full_s)
        if now_s >= lease.save_s:
            lease.is_saved, lease.is_judged = self.is_saved, self.is_judged
        return lease

    def due(self, now_s: float) -> list[Literal["save", "stop"]]:
        """What is due now, each said once."""
        due: list[Literal["save", "stop"]] = []
        if self.is_judged:
            return due
        if not self.is_saved and now_s >= self.save_s:
            self.is_saved = True
            due.append("save")
        if now_s >= self.stop_s:
            self.is_judged = True
            due.append("stop")
        return due
