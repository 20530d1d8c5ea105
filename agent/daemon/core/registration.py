"""The agent's registration with its controller: greeting, welcomed, or lost; and how long this host may
believe that its jobs are still its own. Pure.

Rule: nothing but `Hello` is sent before `Welcome`, for a controller that does not know this start of the
agent must learn its devices and attempts first. Three heartbeats without an answer end the welcome:
heartbeats, not seconds, for an agent that did not get a core for a while has not listened either.

Where several controllers are set, one leads and the others are its standbys. The agent goes to the next one
when a connection is closed, refused or silent. With a standby it waits for a while: that one may be about to
lead, and the agent is connected to it already.

A lease's renewal counts from the moment the heartbeat that it answers was *sent*, so that our lease ends
before the controller's, whatever the network did in between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final

from cotenant.agent.daemon.core.edge import AnyAgentEffect, Reconnect, Say
from cotenant.controller.wire import Route

BEATS_REMEMBERED: Final = 4096
STOP_AT: Final = 0.8
"""Supervisors have stopped their ranks when this part of a lease is over; nothing starts after it."""
HELLO_PERIOD_S: Final = 1.0
REPORT_PERIOD_S: Final = 1.0
REPORT_WINDOW: Final = 64
"""Unconfirmed reports on the wire at one time."""
BEATS_MISSED_MAX: Final = 3
RECONNECT_WAIT_S_MAX: Final = 30.0
ANSWER_S: Final = 2.0
"""A fresh connection on which nothing has come for this long is given up for the next controller: two hellos
were not answered, and a successor's commands are to arrive within five seconds."""
STAND_BY_S: Final = 6.0
"""How long the agent waits with a standby before it tries the others again, since the leader may be out of
reach for this host alone; long beside `ANSWER_S`, for it is away from the standby so long."""
UNSURE_S: Final = 1.0
"""The same with one that does not know who leads."""
REST_S: Final = 0.5
"""Between two rounds in which all have refused the connection."""


class Lease:
    def __init__(self) -> None:
        self.known = False
        """A controller has said what the lease is."""
        self.full_s: float | None = None
        self._from_s: float | None = None
        self._sent_s: OrderedDict[int, float] = OrderedDict()

    def grant(self, full_s: float | None) -> None:
        """Sets the lease to what `Welcome` says; this renews nothing."""
        self.known, self.full_s = True, full_s

    @property
    def is_counting(self) -> bool:
        """Whether there is a renewal to pass on: before the first one an agent that has just started knows
        less than the supervisors, whose own countdown goes on."""
        return self.known and (self.full_s is None or self._from_s is not None)

    def beat_sent(self, beat: int, now_s: float) -> None:
        self._sent_s[beat] = now_s
        while len(self._sent_s) > BEATS_REMEMBERED:
            self._sent_s.popitem(last=False)

    def renew(self, beat: int) -> bool:
        """Renews the lease from when the beat was sent. False: `beat` is not a beat that we know, or a late
        answer to an older one."""
        sent_s = self._sent_s.get(beat)
        if sent_s is None or (self._from_s is not None and sent_s < self._from_s):
            return False
        self._from_s = sent_s
        return True

    def left_s(self, now_s: float) -> float | None:
        """Returns how many seconds of the lease are left. None: no lease is needed. Check `known` first."""
        if self.full_s is None:
            return None
        return 0.0 if self._from_s is None else max(0.0, self._from_s + self.full_s - now_s)

    def may_start(self, now_s: float) -> bool:
        """Whether a job started now could keep its lease."""
        left_s = self.left_s(now_s)
        return self.known and (left_s is None or self._early_enough(left_s))

    def still_meant(self, beat: int, now_s: float) -> bool:
        """Whether an order of a controller that had heard `beat` can still be obeyed: once that beat's lease
        is over, the controller may have given the job to another host."""
        if self.full_s is None:
            return True
        sent_s = self._sent_s.get(beat)
        return sent_s is not None and self._early_enough(sent_s + self.full_s - now_s)

    def _early_enough(self, left_s: float) -> bool:
        assert self.full_s is not None
        return self.full_s - left_s < STOP_AT * self.full_s


_NEVER: Final = float("inf")


class Registration:
    def __init__(self, heartbeat_s: float, controllers: tuple[str, ...] = ("",)) -> None:
        self.lease = Lease()
        self.route = Route(controllers)
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
        self._moves_at_s = _NEVER
        """When to go to the next controller, whatever this one says."""

    @property
    def _silence_s(self) -> float:
        return BEATS_MISSED_MAX * max(self._heartbeat_s, 1.0)

    def next_alarm_s(self, *, reports_wait: bool) -> float:
        if not self.welcomed:
            return min(self._hello_at_s, self._heard_s + self._patience_s, self._moves_at_s)
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
        self.lease.grant(lease_s)
        self.welcomed = True
        self._heard_s, self._unanswered = now_s, 0
        self._patience_s = self._silence_s
        self.beat_at_s = self.reports_at_s = now_s
        self._moves_at_s = _NEVER
        self.route.note_answer()

    # --- Silence -----------------------------------------------------------------------------------

    def is_silent(self, now_s: float) -> bool:
        if self.welcomed:
            return self._unanswered >= BEATS_MISSED_MAX and now_s >= self.beat_at_s
        return now_s >= min(self._heard_s + self._patience_s, self._moves_at_s)

    def lost_sight(self, now_s: float) -> list[AnyAgentEffect]:
        """Start over with a fresh socket; wait longer each time that does not help either."""
        waited_s = now_s - self._heard_s
        first = self.welcomed
        said = [
            Say(text=f"the controller has not answered for {waited_s:.0f} s: greeting it again", bad=True)
        ]
        if not self.route.is_only:
            return [*(said if first else []), *self._go_on(now_s)]
        self.greet_again(now_s)
        self._patience_s = self._silence_s if first else min(2 * self._patience_s, RECONNECT_WAIT_S_MAX)
        return [*(said if first else []), Reconnect()]

    # --- Several controllers -------------------------------------------------------------------------

    def link_changed(self, endpoint: str, is_open: bool, now_s: float) -> list[AnyAgentEffect]:
        """The connection to a controller is there, or is closed or refused."""
        if self.route.is_only or endpoint != self.route.current:
            return []
        if is_open:
            self._hello_at_s = now_s
            return []
        said = [Say(text=f"the connection to {endpoint} was closed", bad=True)] if self.welcomed else []
        if not self.route.is_round_over:
            return [*said, *self._go_on(now_s)]
        self.greet_again(now_s)
        self._moves_at_s = min(self._moves_at_s, now_s + REST_S)
        return [*said]

    def does_not_lead(self, leader: str, now_s: float) -> list[AnyAgentEffect]:
        """This controller is a standby."""
        self._heard_s = now_s
        had_led = self.welcomed
        if had_led:
            self.greet_again(now_s)
        if self.route.follow(leader):
            return self._go(now_s)
        if self.route.is_only:
            return []
        if had_led and not leader:  # It cannot reach the database: who can may lead by now.
            return self._go_on(now_s)
        self._moves_at_s = min(self._moves_at_s, now_s + (STAND_BY_S if leader else UNSURE_S))
        return []

    def leave_refused(self, now_s: float) -> list[AnyAgentEffect]:
        """This controller's epoch is over: look for its successor, if there may be one elsewhere."""
        return [] if self.route.is_only else self._go_on(now_s)

    def _go_on(self, now_s: float) -> list[AnyAgentEffect]:
        self.route.move_on()
        return self._go(now_s)

    def _go(self, now_s: float) -> list[AnyAgentEffect]:
        self.greet_again(now_s)
        self._patience_s, self._moves_at_s = ANSWER_S, _NEVER
        return [Reconnect(endpoint=self.route.current)]

    # --- Heartbeats and reports --------------------------------------------------------------------

    def next_beat(self, now_s: float) -> int:
        self._beat += 1
        self._unanswered += 1
        self.lease.beat_sent(self._beat, now_s)
        self.beat_at_s = now_s + self._heartbeat_s
        return self._beat

    def renew(self, beat: int, now_s: float) -> bool:
        if not self.lease.renew(beat):
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
