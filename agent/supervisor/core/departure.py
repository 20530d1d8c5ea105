"""How to end an attempt's processes: each step with its own deadline, each recorded. Pure. Rule: only this
table asks for a signal to a rank. A client of an MPS daemon that is killed with work
under way may take its co-clients with it, so the daemon takes the client's work back first
(`terminate_client`); only then come the signals. Where no MPS is in use the signals come at once.

    leaving    [terminate_client ->] SIGTERM -> after the grace SIGKILL, again and again
    clearing   [terminate_client ->] SIGKILL to whatever the ended ranks have left behind
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final, Literal

from cotenant.agent.supervisor.core.edge import (
    AnyEffect,
    ClearLeftovers,
    DumpStacks,
    EndRanks,
    TerminateClients,
)

KILL_GRACE_S: Final = 5.0
TERMINATE_S: Final = 5.0
"""For all clients of the attempt together; they are asked one after the other."""
TERMINATE_SLACK_S: Final = 3.0
"""After this it goes on without the edge's answer."""
_CLEAN: Final = ("done", "gone")


class Departure:
    """Of one attempt."""

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
    ) -> list[AnyEffect]:
        """Have them go; SIGKILL comes `grace_s` after SIGTERM. `aborts`: they hang, so those that have not
        shown their stacks do so by dying of SIGABRT."""
        self._grace_s, self._aborts = grace_s, aborts
        if not self._is_client:
            return self._signal(now_s)
        self._step, self._due_s = "terminating", now_s + terminate_s + TERMINATE_SLACK_S
        return [TerminateClients(timeout_s=terminate_s)]

    def hurry(self, by_s: float) -> None:
        """SIGKILL at this time, if it was to come later."""
        self._hurry_s = min(self._hurry_s, by_s)
        if self._step == "signalled":
            self._due_s = min(self._due_s, self._hurry_s)

    def clear(self, now_s: float) -> list[AnyEffect]:
        """Those that we started are gone: end what they left behind."""
        if not self._is_client:
            return self._cleared()
        self._step, self._due_s = "clearing", now_s + TERMINATE_S + TERMINATE_SLACK_S
        return [TerminateClients(timeout_s=TERMINATE_S)]

    def terminated(self, outcomes: Mapping[int, str], problem: str, now_s: float) -> list[AnyEffect]:
        """The daemons have answered, or could not be asked."""
        if self._step not in ("terminating", "clearing"):
            return []
        words = [f"{count} {word}" for word, count in sorted(Counter(outcomes.values()).items())]
        words += [problem] if problem else []
        self.is_unclean |= bool(unclean(outcomes, problem))
        if words:
            self._note(f"terminate_client: {', '.join(words)}")
        return self._signal(now_s) if self._step == "terminating" else self._cleared()

    def advance(self, now_s: float) -> list[AnyEffect]:
        if now_s < self._due_s:
            return []
        if self._step in ("terminating", "clearing"):
            return self.terminated({}, "no answer", now_s)
        if self._step != "signalled":
            return []
        self._note("SIGKILL")
        self._due_s = now_s + KILL_GRACE_S  # Again, for processes that were forked meanwhile.
        return [EndRanks(force=True)]

    def _signal(self, now_s: float) -> list[AnyEffect]:
        self._step = "signalled"
        self._due_s = min(now_s + self._grace_s, max(now_s, self._hurry_s))
        self._note("SIGTERM")
        return [*([DumpStacks(abort=True)] if self._aborts else []), EndRanks(force=False)]

    def _cleared(self) -> list[AnyEffect]:
        self._step, self._due_s = "cleared", inf
        return [ClearLeftovers()]

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
