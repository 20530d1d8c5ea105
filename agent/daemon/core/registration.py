"""How the agent stands to its controller: greeting, welcomed, or lost from sight. Pure.

Rule: nothing but `Hello` is sent before `Welcome`, for a controller that does not know this start of the
agent must learn its devices and attempts first. Three heartbeats without an answer end the welcome:
heartbeats, not seconds, for an agent that did not get a core for a while has not listened either.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from cotenant.agent.daemon.core.edge import AnyEffect, Reconnect, Say
from cotenant.agent.daemon.core.lease import Lease

HELLO_PERIOD_S: Final = 1.0
REPORT_PERIOD_S: Final = 1.0
REPORT_WINDOW: Final = 64
"""Unconfirmed reports on the wire at one time."""
BEATS_MISSED_MAX: Final = 3
RECONNECT_WAIT_S_MAX: Final = 30.0
_NEVER: Final = float("inf")


class Registration:
    def __init__(self, heartbeat_s: float) -> None:
        self.lease = Lease()
        self.welcomed = False
        self.beat_at_s = _NEVER
        self.reports_at_s = _NEVER
        self._heartbeat_s = heartbeat_s
        self._hello_at_s = 0.0
        self._beat = 0
        self._hellos = 0
        self._heard_s = 0.0
        """When the controller last answered a heartbeat or a hello."""
        self._unanswered = 0
        """Heartbeats since then."""
        self._patience_s = self._silence_s

    @property
    def _silence_s(self) -> float:
        return BEATS_MISSED_MAX * max(self._heartbeat_s, 1.0)

    def next_alarm_s(self, *, reports_wait: bool) -> float:
        if not self.welcomed:
            return min(self._hello_at_s, self._heard_s + self._patience_s)
        return min(self.beat_at_s, self.reports_at_s if reports_wait else _NEVER)

    # --- Greeting ----------------------------------------------------------------------------------

    def greet_again(self, now_s: float) -> None:
        """Say hello from now on until the next welcome."""
        self.welcomed = False
        self.beat_at_s = self.reports_at_s = _NEVER
        self._hello_at_s = now_s
        self._heard_s = now_s

    def next_hello(self) -> int:
        self._hellos += 1
        return self._hellos

    def hello_due(self, now_s: float) -> bool:
        if self.welcomed or now_s < self._hello_at_s:
            return False
        self._hello_at_s = now_s + HELLO_PERIOD_S
        return True

    def welcomed_now(self, lease_s: float | None, now_s: float) -> None:
        self.lease.granted(lease_s)
        self.welcomed = True
        self._heard_s, self._unanswered = now_s, 0
        self._patience_s = self._silence_s
        self.beat_at_s = self.reports_at_s = now_s

    # --- Silence -----------------------------------------------------------------------------------

    def is_silent(self, now_s: float) -> bool:
        if self.welcomed:
            return self._unanswered >= BEATS_MISSED_MAX and now_s >= self.beat_at_s
        return now_s >= self._heard_s + self._patience_s

    def lost_sight(self, now_s: float) -> list[AnyEffect]:
        """Start over with a fresh socket; wait longer each time that does not help either."""
        waited_s = now_s - self._heard_s
        first = self.welcomed
        self.greet_again(now_s)
        self._patience_s = self._silence_s if first else min(2 * self._patience_s, RECONNECT_WAIT_S_MAX)
        said = [
            Say(text=f"the controller has not answered for {waited_s:.0f} s: greeting it again", bad=True)
        ]
        return [*(said if first else []), Reconnect()]

    # --- Heartbeats and reports --------------------------------------------------------------------

    def next_beat(self, now_s: float) -> int:
        self._beat += 1
        self._unanswered += 1
        self.lease.beat_sent(self._beat, now_s)
        self.beat_at_s = now_s + self._heartbeat_s
        return self._beat

    def renewed(self, beat: int, now_s: float) -> bool:
        if not self.lease.renewed(beat):
            return False
        self._heard_s, self._unanswered = now_s, 0
        return True

    def may_report_now(self, *, waiting: int) -> bool:
        """A new report goes out at once unless others wait before it; `waiting` counts it."""
        return self.welcomed and waiting <= REPORT_WINDOW

    def reports_due(self, pending: Iterable[int], now_s: float) -> list[int]:
        """The oldest unconfirmed reports, in order, once a period."""
        if not self.welcomed:
            return []
        self.reports_at_s = now_s + REPORT_PERIOD_S
        return list(islice(pending, REPORT_WINDOW))
