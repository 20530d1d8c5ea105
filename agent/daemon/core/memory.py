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

from cotenant.controller.domain import (
    AttemptNo,
    Capabilities,
    CommandId,
    DeviceId,
    Epoch,
    GpuFaultRole,
    JobId,
)
from cotenant.controller.domain import events as ev

BY_XID: Final = 2
"""`Fault.weight`."""
COMMANDS_KEPT: Final = 1024
FENCES_KEPT: Final = 50_000

Key = tuple[JobId, AttemptNo]
JobKey = tuple[JobId, str]
"""A job's number and the token of the epoch in which it arrived: a number alone may mean two jobs, of two
histories. Two attempts of one number are never here at once; the agent refuses the second start."""
PAST_KEPT: Final = 16
"""Epochs that the agent remembers to have left."""


class StopAsked(msgspec.Struct, frozen=True, kw_only=True):
    save: bool
    deadline_s: float
    reason: str


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fatal fault of a device that struck an attempt."""

    role: GpuFaultRole
    why: str
    """The Xid with its name, or what else was seen."""
    where: str
    """The devices."""
    beside: tuple[JobId, ...] = ()
    """Jobs that shared them then."""
    weight: int = 0
    """What `why` rests on: 2 an Xid, 1 the state of its MPS server, 0 the words of a process that died."""

    @property
    def is_by_xid(self) -> bool:
        return self.weight == BY_XID


class Attempt(Capabilities, frozen=True, kw_only=True):
    """One attempt on this host: what it holds, what was asked of it, what the controller was told."""

    job_id: JobId
    attempt: AttemptNo
    command_id: CommandId
    """The last command about it."""
    epoch: str = ""
    """Token of the epoch in which it was launched. Here and below, empty: unknown."""
    job_epoch: str = ""
    devices: tuple[DeviceId, ...] = ()
    has_folder: bool = True
    """False: fenced before it ever started here."""
    uses_library: bool = False
    """It resumes from a checkpoint, so its own library will say when the first step is done."""
    memory_cap_mib: int | None = None
    """Of each device, from its start on; None: it started without a limit."""
    fraction: float = 1.0
    """Below 1: of its one device it has this part."""
    cores: tuple[int, ...] = ()
    """Of a CPU slot: those that are its part; empty: all of its slots."""
    stop: StopAsked | None = None
    save: bool = False
    """A save was asked for and its supervisor has not been told yet."""
    started: bool = False
    capabilities: bool = False
    """The agent has reported these, and whether the job is resumable; a job may find out later."""
    resumable: bool = False
    first_step: bool = False
    first_step_assumed: bool = False
    """It said nothing for a while, and the agent reported that it runs."""
    durable_step: int = -1
    """The newest checkpoint reported."""
    profiled: bool = False
    """Its supervisor is told when another attempt shares its devices."""
    profile_no: int = 0
    """The newest profile reported."""
    troubles: tuple[str, ...] = ()
    """What was reported to have failed without ending it."""
    cuda_processes: int = 1
    """With how many processes a worker was seen to use its GPU, as a client of MPS."""
    mps: bool = False
    """It started as a client of MPS daemons, and stays one for its life, whatever happens to those."""
    fault: Fault | None = None
    """It is told to end for this, or has ended by it."""
    ended: ev.AttemptEnded | None = None
    settled_age_s: float | None = None
    """When the controller confirmed the end; None = not yet."""

    @property
    def key(self) -> Key:
        return (self.job_id, self.attempt)

    @property
    def job(self) -> JobKey:
        return (self.job_id, self.job_epoch)


class StepBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A co-client that has to prove itself, and the last step that it had made before."""

    key: Key
    step: int


class DeviceQuarantine(msgspec.Struct, frozen=True, kw_only=True):
    """About one device, see `teardown.py`."""

    after: JobId
    """The job whose client was killed."""
    waits: tuple[StepBefore, ...]


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """No attempt of the job up to this one may be started here (again)."""

    attempt: AttemptNo
    command_id: CommandId
    epoch: str = ""


# --- Notes: the only changes there are -------------------------------------------------------------


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="n"):
    """Base of what the spool holds."""


class Bound(Note, frozen=True, kw_only=True, tag="bound"):
    """This state belongs to one controller's journal from now on."""

    journal: str


class Follows(Note, frozen=True, kw_only=True, tag="follows"):
    """Commands of this epoch are obeyed from now on, and of no other."""

    epoch: Epoch
    reached: int = 0
    restored: bool = False
    """Its journal lacks what the agent followed before: reports count anew behind `reports_seen`, and the
    jobs it told us to forget are not forgotten until it repeats that."""
    reports_seen: int = 0


class Kept(Note, frozen=True, kw_only=True, tag="kept"):
    """The whole record of an attempt, in place of the one before."""

    attempt: Attempt


class Reported(Note, frozen=True, kw_only=True, tag="reported"):
    """A report with its number, and the attempt's record that goes with it: both or neither."""

    sequence: int
    event: ev.FromAttempt
    attempt: Attempt | None = None


class Confirmed(Note, frozen=True, kw_only=True, tag="confirmed"):
    """Reports up to this number are durable at the controller."""

    sequence: int


class Renumbered(Note, frozen=True, kw_only=True, tag="renumbered"):
    """Unconfirmed reports from number `first` on are numbered from `to`: the controller has seen reports that
    this spool has lost, and their numbers must not be used twice."""

    first: int
    to: int


class Obeyed(Note, frozen=True, kw_only=True, tag="obeyed"):
    command_id: CommandId
    reached: int = 0


class Fenced(Note, frozen=True, kw_only=True, tag="fenced"):
    """What is left of attempts whose records are gone."""

    job_id: JobId
    fence: Fence
    job_epoch: str = ""


class Forgotten(Note, frozen=True, kw_only=True, tag="forgotten"):
    """The job has ended for good; its checkpoints go when it has been forgotten long enough."""

    job_id: JobId
    command_id: CommandId
    age_s: float
    removed: bool = False
    job_epoch: str = ""

    @property
    def job(self) -> JobKey:
        return (self.job_id, self.job_epoch)


class Aged(Note, frozen=True, kw_only=True, tag="aged"):
    age_s: float


class Dropped(Note, frozen=True, kw_only=True, tag="dropped"):
    """An attempt's folder may go, and its record with it."""

    job_id: JobId
    attempt: AttemptNo


class Unfenced(Note, frozen=True, kw_only=True, tag="unfenced"):
    """Nothing of the job is left here. Starts up to this command number are too old to be believed."""

    job_id: JobId
    stale_below: CommandId
    job_epoch: str = ""


class Doubted(Note, frozen=True, kw_only=True, tag="doubted"):
    """A device goes into quarantine, or (None) leaves it."""

    uuid: str
    doubt: DeviceQuarantine | None = None


class Reset(Note, frozen=True, kw_only=True, tag="reset"):
    """Everything so far belonged to another journal."""


AnyNote = (
    Bound
    | Follows
    | Kept
    | Reported
    | Confirmed
    | Renumbered
    | Obeyed
    | Fenced
    | Forgotten
    | Aged
    | Dropped
    | Unfenced
    | Doubted
    | Reset
)


class AgentMemory:
    """The sum of all notes."""

    def __init__(self, notes: Iterable[AnyNote] = ()) -> None:
        self._clear()
        self.age_s = 0.0
        for note in notes:
            self.fold(note)

    def _clear(self) -> None:
        self.journal: str | None = None
        self.epoch = Epoch()
        """The one that is followed."""
        self.epochs_past: tuple[str, ...] = ()
        """Those before it, oldest first."""
        self.reached = 0
        """The last entry of its journal that we know: what is heard between notes is not kept."""
        self.sequence = 0
        """The last number given to a report."""
        self.confirmed = 0
        self.pending: OrderedDict[int, ev.FromAttempt] = OrderedDict()
        self.attempts: dict[Key, Attempt] = {}
        self.fences: dict[JobKey, Fence] = {}
        self.commands: OrderedDict[CommandId, None] = OrderedDict()
        self.forgotten: dict[JobKey, Forgotten] = {}
        self.stale_below = CommandId(0)
        self.quarantined: dict[str, DeviceQuarantine] = {}

    def fold(self, note: AnyNote) -> None:
        match note:
            case Bound(journal=journal):
                self.journal = journal
            case Follows():
                self._follow(note)
            case Kept(attempt=attempt):
                self._keep(attempt)
            case Reported(sequence=sequence, event=event, attempt=attempt):
                self.sequence = max(self.sequence, sequence)
                self.pending[sequence] = event
                if sequence < self.sequence:
                    self.pending = OrderedDict(sorted(self.pending.items()))
                if attempt is not None:
                    self._keep(attempt)
            case Confirmed(sequence=sequence):
                self._confirm(sequence)
            case Renumbered(first=first, to=to):
                moved = [self.pending.pop(number) for number in list(self.pending) if number >= first]
                self.pending.update(enumerate(moved, to))
                self.sequence = to + len(moved) - 1
            case Obeyed(command_id=command_id, reached=reached):
                self.reached = max(self.reached, reached)
                self.commands[command_id] = None
                while len(self.commands) > COMMANDS_KEPT:
                    self.commands.popitem(last=False)
            case Fenced(job_id=job_id, fence=fence, job_epoch=job_epoch):
                self._raise_fence((job_id, job_epoch), fence)
            case Forgotten(job=job):
                if note.removed or job not in self.forgotten:
                    self.forgotten[job] = note
            case Aged(age_s=age_s):
                self.age_s = max(self.age_s, age_s)
            case Dropped(job_id=job_id, attempt=number):
                self.attempts.pop((job_id, number), None)
            case Unfenced(job_id=job_id, stale_below=stale_below, job_epoch=job_epoch):
                self.fences.pop((job_id, job_epoch), None)
                self.forgotten.pop((job_id, job_epoch), None)
                self.stale_below = max(self.stale_below, stale_below)
            case Doubted(uuid=uuid, doubt=doubt):
                self.quarantined.pop(uuid, None)
                if doubt is not None:
                    self.quarantined[uuid] = doubt
            case Reset():
                self._clear()

    def _follow(self, note: Follows) -> None:
        """Commands of earlier epochs are not obeyed any more, so that their numbers are not needed."""
        if note.epoch == self.epoch:
            self.reached = max(self.reached, note.reached)
            return
        if self.epoch.token:
            self.epochs_past = (*self.epochs_past, self.epoch.token)[-PAST_KEPT:]
        self.epoch, self.reached = note.epoch, note.reached
        self.commands.clear()
        self.stale_below = CommandId(0)
        none = CommandId(0)
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

    def _keep(self, attempt: Attempt) -> None:
        """An attempt that is known here was started or refused here: its record is its fence."""
        self.attempts[attempt.key] = attempt
        forgotten = self.forgotten.get(attempt.job)
        if forgotten is not None and attempt.command_id > forgotten.command_id:
            del self.forgotten[attempt.job]  # Somebody queued it again after its end: its saves stay.
        fence = Fence(attempt=attempt.attempt, command_id=attempt.command_id, epoch=attempt.epoch)
        self._raise_fence(attempt.job, fence)

    def _raise_fence(self, job: JobKey, fence: Fence) -> None:
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

    def gaps(self) -> Iterator[Reported]:
        """Numbers that a damaged spool has lost, each filled with a copy of the next report: the controller
        counts without gaps, and to hear a report twice changes nothing."""
        missing: list[int] = []
        for number in range(self.confirmed + 1, self.sequence + 1):
            event = self.pending.get(number)
            if event is None:
                missing.append(number)
                continue
            yield from (Reported(sequence=each, event=event) for each in missing)
            missing = []

    def kept_jobs(self) -> Iterator[JobKey]:
        """Jobs that were here, have nothing unsettled here, and that the controller has not called over."""
        unsettled = {attempt.job for attempt in self.attempts.values() if attempt.settled_age_s is None}
        for job in self.fences:
            if job not in unsettled and job not in self.forgotten:
                yield job

    def notes(self) -> Iterator[AnyNote]:
        """The shortest history that leads here: what the spool is compacted to."""
        yield Aged(age_s=self.age_s)
        if self.journal is not None:
            yield Bound(journal=self.journal)
        yield from (Follows(epoch=Epoch(token=token)) for token in self.epochs_past)
        yield Follows(epoch=self.epoch, reached=self.reached)
        yield Unfenced(job_id=JobId(""), stale_below=self.stale_below)
        yield Confirmed(sequence=self.confirmed)
        yield from (
            Fenced(job_id=job_id, fence=fence, job_epoch=job_epoch)
            for (job_id, job_epoch), fence in self.fences.items()
        )
        yield from self.forgotten.values()
        yield from (Doubted(uuid=uuid, doubt=doubt) for uuid, doubt in self.quarantined.items())
        yield from (Obeyed(command_id=command_id) for command_id in self.commands)
        yield from (Kept(attempt=attempt) for attempt in self.attempts.values())
        yield from (Reported(sequence=n, event=event) for n, event in self.pending.items())
