"""Notes: the only changes of an agent's memory that there are (`memory.py`)."""

from __future__ import annotations

import msgspec

from cotenant.agent.daemon.core.remembered import Attempt, DeviceQuarantine, Fence, JobKey
from cotenant.controller import domain
from cotenant.controller.domain import events as ev


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="n"):
    """Base of what the spool holds."""


class Bound(Note, frozen=True, kw_only=True, tag="bound"):
    """Notes that the agent's state belongs to one controller's journal from now on."""

    journal: str


class Follows(Note, frozen=True, kw_only=True, tag="follows"):
    """Commands of this epoch are obeyed from now on, and of no other."""

    epoch: domain.Epoch
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
    command_id: domain.CommandId
    reached: int = 0


class Fenced(Note, frozen=True, kw_only=True, tag="fenced"):
    """What is left of attempts whose records are gone."""

    job_id: domain.JobId
    fence: Fence
    job_epoch: str = ""


class Forgotten(Note, frozen=True, kw_only=True, tag="forgotten"):
    """The job has ended for good; its checkpoints go when it has been forgotten long enough."""

    job_id: domain.JobId
    command_id: domain.CommandId
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

    job_id: domain.JobId
    attempt: domain.AttemptNo


class Unfenced(Note, frozen=True, kw_only=True, tag="unfenced"):
    """Nothing of the job is left here. Starts up to this command number are too old to be believed."""

    job_id: domain.JobId
    stale_below: domain.CommandId
    job_epoch: str = ""


class Doubted(Note, frozen=True, kw_only=True, tag="doubted"):
    """A device goes into quarantine, or (None) leaves it."""

    uuid: str
    doubt: DeviceQuarantine | None = None


class MeteredAttempt(msgspec.Struct, frozen=True, array_like=True):
    """What an attempt has used by then."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    used_mj: float


class Metered(Note, frozen=True, kw_only=True, tag="metered"):
    """The energy counters of GPUs, by UUID, in millijoules, and what the attempts on them have used by
    then."""

    counters: dict[str, int] = {}
    attempts: tuple[MeteredAttempt, ...] = ()


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
    | Metered
    | Reset
)
