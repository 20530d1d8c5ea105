"""What an agent must not forget: unconfirmed reports, fences, commands obeyed.

Rule: durable state changes only by `AgentMemory.fold(note)`, and each note reaches the spool before anything
that follows from it leaves the agent. So the memory read back after a crash is the memory that was.
Time here is the agent's age: seconds it has run over all its starts, which no clock jump can move.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from cotenant.agent.daemon.core import notes, remembered
from cotenant.controller import domain
from cotenant.controller.domain import events as ev

COMMANDS_KEPT: Final = 1024
FENCES_KEPT: Final = 50_000

PAST_KEPT: Final = 16
"""Epochs that the agent remembers to have left."""


class AgentMemory:
    """The sum of all notes."""

    def __init__(self, kept: Iterable[notes.AnyNote] = ()) -> None:
        self._clear()
        self.age_s = 0.0
        for note in kept:
            self.fold(note)

    def _clear(self) -> None:
        self.journal: str | None = None
        self.epoch = domain.Epoch()
        """The one that is followed."""
        self.epochs_past: tuple[str, ...] = ()
        """Those before it, oldest first."""
        self.reached = 0
        """The last entry of its journal that we know: what is heard between notes is not kept."""
        self.sequence = 0
        """The last number given to a report."""
        self.confirmed = 0
        self.pending: OrderedDict[int, ev.FromAttempt] = OrderedDict()
        self.attempts: dict[remembered.AttemptKey, remembered.Attempt] = {}
        self.fences: dict[remembered.JobKey, remembered.Fence] = {}
        self.commands: OrderedDict[domain.CommandId, None] = OrderedDict()
        self.forgotten: dict[remembered.JobKey, notes.Forgotten] = {}
        self.stale_below = domain.CommandId(0)
        self.quarantined: dict[str, remembered.DeviceQuarantine] = {}
        self.metered: notes.Metered | None = None

    def fold(self, note: notes.AnyNote) -> None:
        match note:
            case notes.Bound(journal=journal):
                self.journal = journal
            case notes.Follows():
                self._follow(note)
            case notes.Kept(attempt=attempt):
                self._keep(attempt)
            case notes.Reported(sequence=sequence, event=event, attempt=attempt):
                self.sequence = max(self.sequence, sequence)
                self.pending[sequence] = event
                if sequence < self.sequence:
                    self.pending = OrderedDict(sorted(self.pending.items()))
                if attempt is not None:
                    self._keep(attempt)
            case notes.Confirmed(sequence=sequence):
                self._confirm(sequence)
            case notes.Renumbered(first=first, to=to):
                moved = [self.pending.pop(number) for number in list(self.pending) if number >= first]
                self.pending.update(enumerate(moved, to))
                self.sequence = to + len(moved) - 1
            case notes.Obeyed(command_id=command_id, reached=reached):
                self.reached = max(self.reached, reached)
                self.commands[command_id] = None
                while len(self.commands) > COMMANDS_KEPT:
                    self.commands.popitem(last=False)
            case notes.Fenced(job_id=job_id, fence=fence, job_epoch=job_epoch):
                self._raise_fence((job_id, job_epoch), fence)
            case notes.Forgotten(job=job):
                if note.removed or job not in self.forgotten:
                    self.forgotten[job] = note
            case notes.Aged(age_s=age_s):
                self.age_s = max(self.age_s, age_s)
            case notes.Dropped(job_id=job_id, attempt=number):
                self.attempts.pop((job_id, number), None)
            case notes.Unfenced(job_id=job_id, stale_below=stale_below, job_epoch=job_epoch):
                self.fences.pop((job_id, job_epoch), None)
                self.forgotten.pop((job_id, job_epoch), None)
                self.stale_below = max(self.stale_below, stale_below)
            case notes.Doubted(uuid=uuid, doubt=doubt):
                self.quarantined.pop(uuid, None)
                if doubt is not None:
                    self.quarantined[uuid] = doubt
            case notes.Metered():
                self.metered = note
            case notes.Reset():
                self._clear()

    def _follow(self, note: notes.Follows) -> None:
        """Commands of earlier epochs are not obeyed any more, so that their numbers are not needed."""
        if note.epoch == self.epoch:
            self.reached = max(self.reached, note.reached)
            return
        if self.epoch.token:
            self.epochs_past = (*self.epochs_past, self.epoch.token)[-PAST_KEPT:]
        self.epoch, self.reached = note.epoch, note.reached
        self.commands.clear()
        self.stale_below = domain.CommandId(0)
        none = domain.CommandId(0)
        self.fences = {
            job: msgspec.structs.replace(fence, command_id=none) for job, fence in self.fences.items()
        }
        self.forgotten = {
            job: msgspec.structs.replace(each, command_id=none) for job, each in self.forgotten.items()
        }
        for key, attempt in self.attempts.items():
            self.attempts[key] = msgspec.structs.replace(attempt, command_id=none)
        if note.restored:
            self.forgotten.clear()
            self.confirmed = note.reports_seen
            self.pending = OrderedDict(enumerate(self.pending.values(), self.confirmed + 1))
            self.sequence = self.confirmed + len(self.pending)

    def _keep(self, attempt: remembered.Attempt) -> None:
        """An attempt that is known here was started or refused here: its record is its fence."""
        self.attempts[attempt.key] = attempt
        forgotten = self.forgotten.get(attempt.job)
        if forgotten is not None and attempt.command_id > forgotten.command_id:
            del self.forgotten[attempt.job]  # Somebody queued it again after its end: its saves stay.
        fence = remembered.Fence(attempt=attempt.attempt, command_id=attempt.command_id, epoch=attempt.epoch)
        self._raise_fence(attempt.job, fence)

    def _raise_fence(self, job: remembered.JobKey, fence: remembered.Fence) -> None:
        before = self.fences.get(job)
        if before is None or before.attempt <= fence.attempt:
            self.fences[job] = fence

    def _confirm(self, sequence: int) -> None:
        self.confirmed = max(self.confirmed, sequence)
        self.sequence = max(self.sequence, sequence)
        while self.pending and next(iter(self.pending)) <= sequence:
            _, event = self.pending.popitem(last=False)
            if isinstance(event, ev.AttemptEnded):
                attempt = self.attempts.get((event.job_id, event.attempt))
                if attempt is not None and attempt.settled_age_s is None:
                    settled = msgspec.structs.replace(attempt, settled_age_s=self.age_s)
                    self.attempts[attempt.key] = settled

    def gaps(self) -> Iterator[notes.Reported]:
        """Numbers that a damaged spool has lost, each filled with a copy of the next report: the controller
        counts without gaps, and to hear a report twice changes nothing."""
        missing: list[int] = []
        for number in range(self.confirmed + 1, self.sequence + 1):
            event = self.pending.get(number)
            if event is None:
                missing.append(number)
                continue
            yield from (notes.Reported(sequence=each, event=event) for each in missing)
            missing = []

    def kept_jobs(self) -> Iterator[remembered.JobKey]:
        """Jobs that were here, have nothing unsettled here, and that the controller has not called over."""
        unsettled = {attempt.job for attempt in self.attempts.values() if attempt.settled_age_s is None}
        for job in self.fences:
            if job not in unsettled and job not in self.forgotten:
                yield job

    def as_notes(self) -> Iterator[notes.AnyNote]:
        """The shortest history that leads here: what the spool is compacted to."""
        yield notes.Aged(age_s=self.age_s)
        if self.journal is not None:
            yield notes.Bound(journal=self.journal)
        yield from (notes.Follows(epoch=domain.Epoch(token=token)) for token in self.epochs_past)
        yield notes.Follows(epoch=self.epoch, reached=self.reached)
        yield notes.Unfenced(job_id=domain.JobId(""), stale_below=self.stale_below)
        yield notes.Confirmed(sequence=self.confirmed)
        yield from (
            notes.Fenced(job_id=job_id, fence=fence, job_epoch=job_epoch)
            for (job_id, job_epoch), fence in self.fences.items()
        )
        yield from self.forgotten.values()
        yield from (notes.Doubted(uuid=uuid, doubt=doubt) for uuid, doubt in self.quarantined.items())
        yield from (notes.Obeyed(command_id=command_id) for command_id in self.commands)
        yield from (notes.Kept(attempt=attempt) for attempt in self.attempts.values())
        if self.metered is not None:
            yield self.metered
        yield from (notes.Reported(sequence=n, event=event) for n, event in self.pending.items())
