"""What happened to each job, for `show`, `explain` and timelines: its attempts on devices, and decisions.

Rule: told by events, commands and decisions alone, so that recovery, which folds the same, arrives at
the same history. Bounded: old attempts and notes fall out, the journal keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from cotenant.controller.domain import (
    ENDED,
    ON_DEVICES,
    AnyCommand,
    AttemptNo,
    Compute,
    Defer,
    DeviceId,
    Hold,
    HostId,
    Job,
    JobId,
    LaunchKind,
    Phase,
    Place,
    Preempt,
    Reason,
    Resize,
    Share,
    StartAttempt,
    StopAttempt,
    Wake,
    because,
    render,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.engine import Engine

ATTEMPTS_KEPT = 100
NOTES_KEPT_PER_JOB = 40
NOTES_KEPT = 1_000


class AttemptRecord(msgspec.Struct, kw_only=True):
    """One attempt on its devices."""

    attempt: AttemptNo
    devices: tuple[DeviceId, ...]
    hosts: tuple[HostId, ...]
    """Host of each device."""
    accumulation_steps: int
    sub_batch: int | None
    launched_s: float
    start_step: int
    end_step: int = 0
    co_tenants: tuple[JobId, ...] = ()
    first_step_s: float | None = None
    first_step: int | None = None
    stop_requested_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    reason: str = ""
    exact: bool | None = None
    stop_reason: Reason | None = None
    failed_as: Literal["", "infra-failed", "user-failed"] = ""
    """The worst that a host of its gang said of it; empty: none of them said that it failed."""
    failure: str = ""
    """What failed, in that host's words."""
    launch: LaunchKind = ""
    launch_why: str = ""
    """Why a host did not start it warm."""


class HistoryNote(msgspec.Struct, frozen=True, array_like=True):
    """One thing that was decided, or that ended."""

    at_s: float
    event: str
    job_id: JobId | None
    what: str
    reason: Reason


class SavedHistory(msgspec.Struct, kw_only=True):
    """The whole history as a value."""

    stretches: dict[JobId, list[AttemptRecord]] = {}
    job_notes: dict[JobId, list[HistoryNote]] = {}
    notes: list[HistoryNote] = []


class History:
    """Watches the engine; `observe` after every event."""

    def __init__(self, saved: SavedHistory | None = None) -> None:
        self._saved = saved if saved is not None else SavedHistory()
        self._open: dict[JobId, AttemptRecord] = {}
        self._on_host: dict[HostId, dict[JobId, None]] = {}
        for job_id, attempts in self._saved.stretches.items():
            if attempts and attempts[-1].ended_s is None:
                self._keep_open(job_id, attempts[-1])

    def save(self) -> SavedHistory:
        return self._saved

    # --- Reading -----------------------------------------------------------------------------------

    def attempts(self, job_id: JobId) -> Sequence[AttemptRecord]:
        return self._saved.stretches.get(job_id, ())

    def newest(self, job_id: JobId) -> AttemptRecord | None:
        known = self._saved.stretches.get(job_id)
        return known[-1] if known else None

    def notes(self, job_id: JobId | None, limit: int) -> Iterator[HistoryNote]:
        """Newest first."""
        notes = self._saved.notes if job_id is None else self._saved.job_notes.get(job_id, [])
        yield from notes[: -limit - 1 : -1]

    # --- Watching ----------------------------------------------------------------------------------

    def observe(self, engine: Engine, event: ev.AnyEvent, commands: Iterable[AnyCommand]) -> None:
        """Take in what one `handle` (or `fold`) did."""
        now_s = engine.now_s
        name = type(event).__name__
        self._from_event(event, now_s)
        touched = dict.fromkeys(self._concerned(event))  # In order: the same history in every process.
        started: list[JobId] = []
        for command in commands:
            if isinstance(command, StartAttempt):
                self._started(engine, event, command, started)
            elif isinstance(command, StopAttempt):
                self._stop_asked(engine, command)
                touched[command.job_id] = None
        for action in engine.decision.actions:
            if not isinstance(action, (Wake, Compute)):
                self._note(HistoryNote(now_s, name, action.job_id, in_words(action), action.reason))
        for refusal in engine.refusals:
            self._note(HistoryNote(now_s, name, None, "refused", refusal))
        for job_id in touched:
            self._close_if_over(engine, job_id, event)
        for job_id in started:
            self._join_partners(engine, job_id)
        self._forget_old(engine)

    def _keep_open(self, job_id: JobId, attempt_record: AttemptRecord) -> None:
        self._open[job_id] = attempt_record
        for host_id in attempt_record.hosts:
            self._on_host.setdefault(host_id, {})[job_id] = None

    def _from_event(self, event: ev.AnyEvent, now_s: float) -> None:
        if isinstance(event, ev.TroubleSeen):
            self._note(
                HistoryNote(now_s, "TroubleSeen", event.job_id, "trouble", because("trouble", event.what))
            )
        if not isinstance(
            event,
            (
                ev.AttemptStarted,
                ev.FirstStepDone,
                ev.CapabilitiesSeen,
                ev.CheckpointDurable,
                ev.AttemptEnded,
            ),
        ):
            return
        attempt_record = self._open.get(event.job_id)
        if attempt_record is None or attempt_record.attempt != event.attempt:
            return
        if isinstance(event, ev.AttemptStarted):
            if attempt_record.launch != "cold":
                attempt_record.launch, attempt_record.launch_why = event.launch, event.launch_why
            return
        attempt_record.end_step = max(attempt_record.end_step, event.step)
        if isinstance(event, ev.FirstStepDone) and attempt_record.first_step_s is None and not event.assumed:
            attempt_record.first_step_s, attempt_record.first_step = now_s, event.step
        elif isinstance(event, ev.CapabilitiesSeen):
            attempt_record.start_step = event.step
            if event.exact is not None and attempt_record.exact is None:
                attempt_record.exact = event.exact
                self._note(HistoryNote(now_s, "CapabilitiesSeen", event.job_id, "resume", resumed(event)))
        elif isinstance(event, ev.AttemptEnded):
            if event.outcome == "user-failed" or (
                event.outcome == "infra-failed" and not attempt_record.failed_as
            ):
                attempt_record.failed_as, attempt_record.failure = (
                    event.outcome,
                    event.detail or event.outcome,
                )
        elif isinstance(event, ev.CheckpointDurable):
            attempt_record.exact = (
                event.exact if attempt_record.exact is None else attempt_record.exact and event.exact
            )

    def _concerned(self, event: ev.AnyEvent) -> Iterator[JobId]:
        """Jobs of which this event may end an attempt."""
        if isinstance(event, (ev.HostLost, ev.HostJoined)):
            host_id = event.host_id if isinstance(event, ev.HostLost) else event.report.host_id
            yield from self._on_host.get(host_id, ())
        elif isinstance(event, ev.AttemptEnded):
            yield event.job_id

    def _started(
        self, engine: Engine, event: ev.AnyEvent, command: StartAttempt, started: list[JobId]
    ) -> None:
        job_id = command.job_id
        known = self._open.get(job_id)
        if known is not None and known.attempt == command.attempt:
            return  # Its other hosts, or the same command once more.
        if known is not None:
            self._close(engine, job_id, known, event)
        attempt_record = AttemptRecord(
            attempt=command.attempt,
            devices=tuple(device for member in command.gang for device in member.devices),
            hosts=tuple(member.host_id for member in command.gang for _ in member.devices),
            accumulation_steps=command.accumulation_steps,
            sub_batch=command.sub_batch,
            launched_s=engine.now_s,
            start_step=command.resume_step,
            end_step=command.resume_step,
        )
        self._keep_open(job_id, attempt_record)
        known_before = self._saved.stretches.setdefault(job_id, [])
        known_before.append(attempt_record)
        del known_before[:-ATTEMPTS_KEPT]
        started.append(job_id)

    def _join_partners(self, engine: Engine, job_id: JobId) -> None:
        mine = self._open[job_id]
        for other_id in engine.partners(job_id):
            mine.co_tenants = with_one_more(mine.co_tenants, other_id)
            theirs = self._open.get(other_id)
            if theirs is not None:
                theirs.co_tenants = with_one_more(theirs.co_tenants, job_id)

    def _stop_asked(self, engine: Engine, command: StopAttempt) -> None:
        attempt_record = self._open.get(command.job_id)
        if attempt_record is None or attempt_record.attempt != command.attempt:
            return
        if attempt_record.stop_requested_s is None:
            attempt_record.stop_requested_s = engine.now_s
        attempt_record.reason, attempt_record.stop_reason = render(command.reason), command.reason
        if not any(  # The policy's own action tells it.
            isinstance(action, Preempt) and (action.job_id, action.reason) == (command.job_id, command.reason)
            for action in engine.decision.actions
        ):
            self._note(HistoryNote(engine.now_s, "StopAttempt", command.job_id, "stop", command.reason))

    def _close_if_over(self, engine: Engine, job_id: JobId, event: ev.AnyEvent) -> None:
        attempt_record, job = self._open.get(job_id), engine.jobs.get(job_id)
        if attempt_record is None:
            return
        if job is None or job.attempt != attempt_record.attempt or job.phase not in ON_DEVICES:
            self._close(engine, job_id, attempt_record, event)

    def _close(
        self, engine: Engine, job_id: JobId, attempt_record: AttemptRecord, event: ev.AnyEvent
    ) -> None:
        del self._open[job_id]
        for host_id in set(attempt_record.hosts):
            del self._on_host[host_id][job_id]
        attempt_record.ended_s = engine.now_s
        job = engine.jobs.get(job_id)
        if job is None:  # Ended, and forgotten at once.
            return
        attempt_record.outcome = outcome_of(job, attempt_record, event)
        what = f"attempt {attempt_record.attempt} {attempt_record.outcome}"
        reason = why_it_ended(job, attempt_record, event)
        why = attempt_record.reason = render(reason)
        if isinstance(event, ev.AttemptEnded) and event.outcome == "stopped" and event.detail:
            # What the request to stop came to: saved at a step, or ended at the deadline and gone back.
            if event.detail not in why and why not in event.detail:
                attempt_record.reason += f"; {event.detail}"
            if attempt_record.stop_reason == reason:  # Why is told already, by the note of the request.
                reason = because("stopped-as", event.detail.removesuffix(f" ({why})"))
        self._note(HistoryNote(engine.now_s, type(event).__name__, job_id, what, reason))

    def _note(self, note: HistoryNote) -> None:
        if note.job_id is not None:
            mine = self._saved.job_notes.setdefault(note.job_id, [])
            if mine and (mine[-1].what, mine[-1].reason) == (note.what, note.reason):
                return  # Held back again for the same reason.
            mine.append(note)
            del mine[:-NOTES_KEPT_PER_JOB]
        self._saved.notes.append(note)
        if len(self._saved.notes) > 2 * NOTES_KEPT:
            del self._saved.notes[:-NOTES_KEPT]

    def _forget_old(self, engine: Engine) -> None:
        """Follow the engine in forgetting ended jobs, now and then."""
        for table in (self._saved.stretches, self._saved.job_notes):
            if len(table) > len(engine.jobs) + 1_000:
                for job_id in [job_id for job_id in table if job_id not in engine.jobs]:
                    del table[job_id]


def resumed(event: ev.CapabilitiesSeen) -> Reason:
    if event.exact:
        return because("resumed-exact", event.step)
    return because("resumed-equivalent", event.step, event.note or "something differs")


def why_it_ended(job: Job, attempt_record: AttemptRecord, event: ev.AnyEvent) -> Reason:
    """What ended the attempt, which is not what the job waits for now, nor why it has started again: a
    failure comes before a lost host, and either before the request to stop that it forestalled."""
    if job.attempt == attempt_record.attempt and (job.phase in ENDED or job.phase is Phase.HELD):
        return job.reason
    if attempt_record.failed_as == "user-failed":
        return because("user-failed", attempt_record.failure)
    if isinstance(event, ev.HostLost):
        return because("host-lost", event.host_id, event.by)
    if attempt_record.failed_as and not _went_with_host(attempt_record):
        return because("infra-failed", attempt_record.failure)
    if attempt_record.stop_reason is not None:
        return attempt_record.stop_reason
    return because("stopped-as", _words_of(event))


def _words_of(event: ev.AnyEvent) -> str:
    if isinstance(event, ev.AttemptEnded):
        return event.detail or event.outcome
    return f"ended with {type(event).__name__}"


def outcome_of(job: Job, attempt_record: AttemptRecord, event: ev.AnyEvent) -> str:
    """How an attempt ended, in the words of `show`."""
    if isinstance(event, ev.HostLost):
        return "host-lost"
    if job.phase is Phase.CANCELLED:
        return "cancelled"
    if isinstance(event, ev.AttemptEnded):
        if attempt_record.failed_as and not _went_with_host(attempt_record):
            return attempt_record.failed_as
        if event.outcome != "stopped" or attempt_record.stop_requested_s is None:
            return event.outcome
        if job.phase is Phase.FAILED:
            return "stopped"
        return _NOT_PREEMPTED.get(
            attempt_record.stop_reason.code if attempt_record.stop_reason else "", "preempted"
        )
    return "ended"


def _went_with_host(attempt_record: AttemptRecord) -> bool:
    """Its other hosts' parts were stopped, or failed, because one host was lost."""
    lost = attempt_record.stop_reason is not None and attempt_record.stop_reason.code == "host-lost"
    return lost and attempt_record.failed_as != "user-failed"


_NOT_PREEMPTED = {"host-lost": "host-lost", "gang-peer-ended": "stopped", "fenced": "stopped"}
"""Codes of stops that nobody wanted: the rest of a gang is stopped when a part of it is gone."""


def with_one_more(jobs: tuple[JobId, ...], job_id: JobId) -> tuple[JobId, ...]:
    return jobs if job_id in jobs else (*jobs, job_id)


def in_words(action: Place | Share | Preempt | Resize | Hold | Defer) -> str:
    """An action as a short phrase."""
    match action:
        case Place() | Share():
            s = action.accumulation_steps
            steps = f" with {s} accumulation steps" if s > 1 else ""
            return f"{type(action).__name__.lower()} on {', '.join(action.devices)}{steps}"
        case Preempt():
            return "preempt" + (f" for {action.for_job}" if action.for_job else "")
        case Resize():
            return f"resize to {', '.join(action.devices)}"
        case Hold():
            return "hold back"
        case Defer():
            return "put off"
