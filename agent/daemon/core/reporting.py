"""What the controller has not been told yet, from a whole status or result; and the outbox, from which
everything leaves the state machine in order: notes for the disk, messages, requests to the edge. Pure.

Rule: a supervisor sends everything it knows every time; only the difference to what was reported before
becomes a report. So a lost, repeated or skipped status changes nothing.

Rule: the outbox is the only place that folds a note into the memory and the only one that numbers a report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from cotenant.agent.daemon.core.edge import AnyAgentEffect, Keep, Say, Send
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.notes import AnyNote, Reported
from cotenant.agent.daemon.core.registration import Registration
from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.ipc.records import Durable, Result, Status
from cotenant.controller.domain import HostId
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import FromAgent, Report

TROUBLES_MAX: Final = 16
"""Reports of one attempt's troubles; after these its log has the rest."""

AttemptReport = tuple[ev.FromAttempt, Attempt]
"""A report, and the attempt's record once it is made."""


def from_status(
    attempt: Attempt, status: Status, host_id: HostId, device_type: str = ""
) -> Iterator[AttemptReport]:
    """Yields what a status has that is new, in the order in which things happen: started, hello, first step,
    checkpoints, profile."""
    job_id, number = attempt.key
    if status.started and not attempt.started:
        attempt = msgspec.structs.replace(attempt, started=True)
        started = ev.AttemptStarted(
            job_id=job_id,
            attempt=number,
            host_id=host_id,
            launch=status.launch,
            launch_why=status.launch_why,
        )
        yield started, attempt
    for told in _capabilities(attempt, status, host_id):
        attempt = told[1]
        yield told
    if status.first_step is not None and not attempt.first_step:
        yield first_step(attempt, status.first_step, host_id)
        attempt = msgspec.structs.replace(attempt, first_step=True)
    for told in _checkpoints(attempt, status.durable, host_id):
        attempt = told[1]
        yield told
    if status.profile is not None and status.profile_no > attempt.profile_no:
        attempt = msgspec.structs.replace(attempt, profile_no=status.profile_no)
        learned = ev.ProfileLearned(
            job_id=job_id,
            profile=status.profile,
            attempt=number,
            host_id=host_id,
            device_type=device_type,
            is_complete=status.profile_complete,
        )
        yield learned, attempt
    told_before = attempt.words_told
    if status.words.link != told_before.link or bool(status.words.lost) != bool(told_before.lost):
        told = _output(attempt, status, host_id)
        attempt = told[1]
        yield told
    yield from troubles(attempt, status.failed, host_id)


def from_result(
    attempt: Attempt,
    result: Result,
    host_id: HostId,
    device_type: str = "",
    energy_j: float | None = None,
) -> Iterator[AttemptReport]:
    """What no status had time to say, then the end."""
    for told in from_status(attempt, result.status, host_id, device_type):
        attempt = told[1]
        yield told
    if result.status.words != attempt.words_told:
        told = _output(attempt, result.status, host_id)
        attempt = told[1]
        yield told
    ended = ev.AttemptEnded(
        job_id=result.job_id,
        attempt=result.attempt,
        host_id=host_id,
        verdict=result.verdict,
        step=result.step,
        gpu_fault=result.gpu_fault,
        energy_j=energy_j,
        ended_unix_s=result.ended_unix_s,
    )
    yield ended, add_end(attempt, ended)


def first_step(attempt: Attempt, step: int, host_id: HostId) -> AttemptReport:
    event = ev.FirstStepDone(job_id=attempt.job_id, attempt=attempt.attempt, host_id=host_id, step=step)
    return event, msgspec.structs.replace(attempt, first_step=True)


def assumed_step(attempt: Attempt, host_id: HostId) -> AttemptReport:
    """Returns the report of an assumed first step: the attempt has run a while and no step of it can be seen;
    a step that is seen later is reported as well."""
    event = ev.FirstStepDone(
        job_id=attempt.job_id, attempt=attempt.attempt, host_id=host_id, step=0, assumed=True
    )
    return event, msgspec.structs.replace(attempt, first_step_assumed=True)


def _output(attempt: Attempt, status: Status, host_id: HostId) -> AttemptReport:
    event = ev.OutputSeen(job_id=attempt.job_id, attempt=attempt.attempt, host_id=host_id, words=status.words)
    return event, msgspec.structs.replace(attempt, words_told=status.words)


def add_end(attempt: Attempt, ended: ev.AttemptEnded) -> Attempt:
    """Nothing more can be asked of it."""
    return msgspec.structs.replace(attempt, ended=ended, stop=None, save=False)


def _capabilities(attempt: Attempt, status: Status, host_id: HostId) -> Iterator[AttemptReport]:
    if status.resumable is None:
        return
    known = msgspec.structs.replace(attempt, capabilities=status.capabilities, resumable=status.resumable)
    if known != attempt:
        hello = ev.CapabilitiesSeen(
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            host_id=host_id,
            resumable=status.resumable,
            capabilities=status.capabilities,
            step=status.start_step,
            exact=status.exact,
            note=status.note,
        )
        yield hello, known


def _checkpoints(attempt: Attempt, durable: tuple[Durable, ...], host_id: HostId) -> Iterator[AttemptReport]:
    for each in sorted(durable, key=lambda d: d.step):
        if each.step > attempt.durable_step:
            attempt = msgspec.structs.replace(attempt, durable_step=each.step)
            event = ev.CheckpointDurable(
                job_id=attempt.job_id,
                attempt=attempt.attempt,
                host_id=host_id,
                step=each.step,
                exact=each.exact,
            )
            yield event, attempt


def troubles(attempt: Attempt, failed: tuple[str, ...], host_id: HostId) -> Iterator[AttemptReport]:
    for what in failed:
        if what in attempt.troubles or len(attempt.troubles) >= TROUBLES_MAX:
            continue
        attempt = msgspec.structs.replace(attempt, troubles=(*attempt.troubles, what))
        yield (
            ev.TroubleSeen(job_id=attempt.job_id, attempt=attempt.attempt, host_id=host_id, what=what),
            attempt,
        )


# --- The outbox ------------------------------------------------------------------------------------


REPORTS_KEPT: Final = 10_000
"""Above this many unconfirmed reports, checkpoints are not reported until there is room for the newest."""


class Outbox:
    def __init__(self, memory: AgentMemory, registration: Registration) -> None:
        self.memory = memory
        self._registration = registration
        self._effects: list[AnyAgentEffect] = []

    def drain(self) -> list[AnyAgentEffect]:
        effects, self._effects = self._effects, []
        return effects

    def add(self, effect: AnyAgentEffect) -> None:
        self._effects.append(effect)

    def say(self, text: str, *, bad: bool = False) -> None:
        self.add(Say(text=text, bad=bad))

    def send(self, message: FromAgent) -> None:
        self.add(Send(message=message))

    def keep(self, note: AnyNote) -> None:
        self.memory.fold(note)
        self.add(Keep(note=note))

    def report(self, event: ev.FromAttempt, attempt: Attempt) -> None:
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
        """Sends a report with the epochs of its attempt, whose record stays until the report of its end is
        confirmed."""
        event = self.memory.pending[sequence]
        attempt = self.memory.attempts.get((event.job_id, event.attempt)) if event.attempt else None
        epoch, job_epoch = (attempt.epoch, attempt.job_epoch) if attempt is not None else ("", "")
        self.send(Report(sequence=sequence, event=event, epoch=epoch, job_epoch=job_epoch))
