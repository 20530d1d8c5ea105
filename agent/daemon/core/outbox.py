"""What leaves the state machine, in order: notes for the disk, messages, requests to the edge. Pure.

Rule: this is the only place that folds a note into the memory and the only one that numbers a report.
"""

from __future__ import annotations

from typing import Final

from cotenant.agent.daemon.core.edge import AnyEffect, Keep, Say, Send
from cotenant.agent.daemon.core.memory import AgentMemory, AnyNote, Attempt, Reported
from cotenant.agent.daemon.core.registration import Registration
from cotenant.controller.domain import FromAttempt
from cotenant.controller.wire import FromAgent, Report

REPORTS_KEPT: Final = 10_000
"""Above this many unconfirmed reports, checkpoints are not reported until there is room for the newest."""


class Outbox:
    def __init__(self, memory: AgentMemory, registration: Registration) -> None:
        self.memory = memory
        self._registration = registration
        self._effects: list[AnyEffect] = []

    def drain(self) -> list[AnyEffect]:
        effects, self._effects = self._effects, []
        return effects

    def add(self, effect: AnyEffect) -> None:
        self._effects.append(effect)

    def say(self, text: str, *, bad: bool = False) -> None:
        self.add(Say(text=text, bad=bad))

    def send(self, message: FromAgent) -> None:
        self.add(Send(message=message))

    def keep(self, note: AnyNote) -> None:
        self.memory.fold(note)
        self.add(Keep(note=note))

    def report(self, event: FromAttempt, attempt: Attempt) -> None:
        """Send a report, with the attempt's record that goes with it, at once where nothing waits before
        it."""
        if event.can_be_left_out and len(self.memory.pending) >= REPORTS_KEPT:
            return
        sequence = self.memory.sequence + 1
        self.keep(Reported(sequence=sequence, event=event, attempt=attempt))
        if self._registration.may_report_now(waiting=len(self.memory.pending)):
            self._send_report(sequence)

    def report_again(self, now_s: float) -> None:
        """The oldest unconfirmed reports, in order, if it is time."""
        for sequence in self._registration.reports_due(self.memory.pending, now_s):
            self._send_report(sequence)

    def _send_report(self, sequence: int) -> None:
        """With the epochs of its attempt, whose record stays until the report of its end is confirmed."""
        event = self.memory.pending[sequence]
        attempt = self.memory.attempts.get((event.job_id, event.attempt)) if event.attempt else None
        epoch, job_epoch = (attempt.epoch, attempt.job_epoch) if attempt is not None else ("", "")
        self.send(Report(sequence=sequence, event=event, epoch=epoch, job_epoch=job_epoch))
