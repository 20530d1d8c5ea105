"""Why an attempt is to stop (the agent wants it, or its lease runs out), and how its processes end. Pure.

Rule: the supervisor asks a job that can resume to save and stop at an agreed step, for as long as the
deadline allows, and ends every other job. All orders of the agent count together: the earliest deadline, and
a stop without a save overrides one with.

The supervisor counts the lease down by itself: save at 60 % of it, stop the ranks at 80 %. After its end the
controller may start the job elsewhere, so the supervisor ends a job that could start there by then, whatever
happened to agent and network; it leaves a job alone that could not.

A person's Ctrl-C at `cotenant run` reaches a job as SIGINT, which it may handle as on a terminal; it departs
when its time to end by itself is over.

Only the table of `Departure` asks for any other signal to a rank; each step has its own deadline, and each is
recorded. A client of an MPS daemon that is killed with work under way may take its co-clients with it, so the
daemon takes the client's work back first (`terminate_client`); only then come the signals. Where no MPS is in
use the signals come at once.

    leaving    [terminate_client ->] SIGTERM -> after the grace SIGKILL, again and again
    clearing   [terminate_client ->] SIGKILL to whatever the ended ranks have left behind
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final, Literal

import msgspec

from cotenant.agent.ipc.channel import StopNow
from cotenant.agent.ipc.records import Order, Status
from cotenant.agent.supervisor.core import edge, exits
from cotenant.agent.supervisor.core.coordination import MEMBER_PERIOD_S, Coordination

LOADING_GRACE_S: Final = 5.0
"""Between SIGTERM and SIGKILL for a job that has nothing to lose."""
PLAIN_GRACE_S: Final = 30.0
"""For a script that may want to save by itself on SIGTERM."""
SAVE_RETRY_S: Final = 5.0
SAVE_AT_LEASE: Final = 0.6
STOP_AT_LEASE: Final = 0.8
QUIET_S: Final = 60.0
"""A job that has not said hello for this long does not know the library."""


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """The processes have to go, for this reason."""

    cause: exits.ExitCause
    grace_s: float


class StopWish(msgspec.Struct, kw_only=True):
    """What the agent wants, all its orders together."""

    save: bool
    asked_s: float
    until_s: float
    allowed_s: float
    reason: str
    interrupt: bool = False
    """SIGINT comes first, and time until `until_s`."""
    is_interrupted: bool = False
    """They have got it."""
    finish: bool = False
    """Ranks whose loop knows us leave it and go on with their script."""
    is_asked: bool = False
    retry_s: float = inf

    @classmethod
    def ask(cls, word: StopNow, now_s: float) -> StopWish:
        return cls(
            save=word.save,
            asked_s=now_s,
            until_s=now_s + word.deadline_s,
            allowed_s=word.deadline_s,
            reason=word.reason,
            interrupt=word.interrupt,
            finish=word.finish,
        )

    def asked_again(self, word: StopNow, now_s: float) -> None:
        self.until_s = min(self.until_s, now_s + word.deadline_s)
        if self.save and not word.save:
            self.save, self.reason, self.interrupt = False, word.reason, word.interrupt

    @property
    def patience_s(self) -> float:
        """Until when a word from ranks elsewhere is waited for."""
        return min(self.until_s, self.asked_s + 2 * MEMBER_PERIOD_S)

    def alarms(self, coordination: Coordination) -> list[float]:
        waits = [self.patience_s] if coordination.waits_for_members else []
        return [self.until_s, self.retry_s, *waits]

    def judge(
        self, coordination: Coordination, now_s: float, *, is_loading: bool
    ) -> Leave | Literal["ask", "wait", "interrupt"]:
        """Returns what to do now; `ask`: propose a step to stop at; `interrupt`: send SIGINT."""
        if self.interrupt:
            if not self.is_interrupted:
                self.is_interrupted = True
                return "interrupt"
            return "wait" if now_s < self.until_s else Leave(cause="stop", grace_s=KILL_GRACE_S)
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


def grace_s(stop: StopWish, *, is_loading: bool) -> float:
    """Between SIGTERM and SIGKILL, when the job is to end without a save. Only a stop with one has a deadline
    that may be sooner."""
    if is_loading:
        return LOADING_GRACE_S
    allowed_s = stop.allowed_s if stop.save else PLAIN_GRACE_S
    return max(1.0, min(allowed_s, PLAIN_GRACE_S))


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
        """Between SIGTERM and SIGKILL: half of what is left. A supervisor that was frozen until the lease was
        over has none: the job may run elsewhere by now."""
        return max(0.0, min(KILL_GRACE_S, (self.ends_s - now_s) / 2))

    def is_over(self, now_s: float) -> bool:
        return now_s >= self.ends_s

    @property
    def terminate_s(self) -> float:
        """The seconds for MPS daemons to take their clients back: a quarter."""
        return min(TERMINATE_S, (1.0 - STOP_AT_LEASE) / 4 * self.full_s)

    @property
    def next_alarm_s(self) -> float:
        if self.is_judged:
            return inf
        return self.stop_s if self.is_saved else self.save_s

    def renew(self, ends_s: float, full_s: float, now_s: float) -> LeaseLimit:
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


# --- How its processes are ended -------------------------------------------------------------------


KILL_GRACE_S: Final = 5.0
TERMINATE_S: Final = 5.0
"""For all clients of the attempt together; they are asked one after the other."""
TERMINATE_SLACK_S: Final = 3.0
"""After this it goes on without the edge's answer."""
_CLEAN: Final = ("done", "gone")


class Departure:
    """The departure of one attempt's processes."""

    def __init__(self, *, is_client: bool) -> None:
        self._is_client = is_client
        self._step: Literal["", "terminating", "signalled", "clearing", "cleared"] = ""
        self._grace_s = 0.0
        self._aborts = False
        self._hurry_s = inf
        self._due_s = inf
        self.record: tuple[str, ...] = ()
        """What was done, in order."""
        self.is_unclean = False
        """A client was signalled although its daemon had not taken it back."""

    @property
    def next_alarm_s(self) -> float:
        return self._due_s

    def begin(
        self, now_s: float, grace_s: float, *, terminate_s: float = TERMINATE_S, aborts: bool = False
    ) -> list[edge.AnySupervisorEffect]:
        """Makes the processes go; SIGKILL comes `grace_s` after SIGTERM. `aborts`: the processes hang, so
        those that have not shown their stacks do so by dying of SIGABRT."""
        self._grace_s, self._aborts = grace_s, aborts
        if not self._is_client:
            return self._signal(now_s)
        self._step, self._due_s = "terminating", now_s + terminate_s + TERMINATE_SLACK_S
        return [edge.TerminateClients(timeout_s=terminate_s)]

    def hurry(self, by_s: float) -> None:
        """SIGKILL at this time, if it was to come later."""
        self._hurry_s = min(self._hurry_s, by_s)
        if self._step == "signalled":
            self._due_s = min(self._due_s, self._hurry_s)

    def clear(self, now_s: float) -> list[edge.AnySupervisorEffect]:
        """Ends what the processes that we started left behind, now that those are gone."""
        if not self._is_client:
            return self._clear()
        self._step, self._due_s = "clearing", now_s + TERMINATE_S + TERMINATE_SLACK_S
        return [edge.TerminateClients(timeout_s=TERMINATE_S)]

    def note_termination(
        self, outcomes: Mapping[int, str], problem: str, now_s: float
    ) -> list[edge.AnySupervisorEffect]:
        """The daemons have answered, or could not be asked."""
        if self._step not in ("terminating", "clearing"):
            return []
        words = [f"{count} {word}" for word, count in sorted(Counter(outcomes.values()).items())]
        words += [problem] if problem else []
        self.is_unclean |= bool(unclean(outcomes, problem))
        if words:
            self._note(f"terminate_client: {', '.join(words)}")
        return self._signal(now_s) if self._step == "terminating" else self._clear()

    def advance(self, now_s: float) -> list[edge.AnySupervisorEffect]:
        if now_s < self._due_s:
            return []
        if self._step in ("terminating", "clearing"):
            return self.note_termination({}, "no answer", now_s)
        if self._step != "signalled":
            return []
        self._note("SIGKILL")
        self._due_s = now_s + KILL_GRACE_S  # Again, for processes that were forked meanwhile.
        return [edge.EndRanks(force=True)]

    def _signal(self, now_s: float) -> list[edge.AnySupervisorEffect]:
        self._step = "signalled"
        self._due_s = min(now_s + self._grace_s, max(now_s, self._hurry_s))
        self._note("SIGTERM")
        return [*([edge.DumpStacks(abort=True)] if self._aborts else []), edge.EndRanks(force=False)]

    def _clear(self) -> list[edge.AnySupervisorEffect]:
        self._step, self._due_s = "cleared", inf
        return [edge.ClearLeftovers()]

    def _note(self, text: str) -> None:
        if text not in self.record:
            self.record = (*self.record, text)


def unclean(outcomes: Mapping[int, str], problem: str) -> str:
    """What a person should know of an MPS client that went without its daemon's help; empty if none did."""
    bad = {pid: word for pid, word in outcomes.items() if word not in _CLEAN}
    if not bad and not problem:
        return ""
    who = ", ".join(f"process {pid}: {word}" for pid, word in sorted(bad.items())) or problem
    return f"mps: the daemon did not take its clients back before they were signalled ({who})"
