"""What is remembered of one attempt, and how its end is put in words. Pure.

Rule: a field that is added has a default: snapshots hold these records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.history.attempt_account import AttemptAccount

EndCause = Literal["", "preempted", "by-hand", "parted", "crowded", "faulted", "resized"]
"""For another job; by a person; from a co-tenant with which it lost; out of memory beside one; with a GPU
fault beside one; to go on with another number of devices."""


class AttemptRecord(msgspec.Struct, kw_only=True):
    """The record of one attempt on its devices."""

    attempt: domain.AttemptNo
    devices: tuple[domain.DeviceId, ...]
    hosts: tuple[domain.HostId, ...]
    """Host of each device."""
    accumulation_steps: int
    sub_batch: int | None
    launched_s: float
    start_step: int
    end_step: int = 0
    co_tenants: tuple[domain.JobId, ...] = ()
    first_step_s: float | None = None
    first_step: int | None = None
    assumed_s: float | None = None
    """Since when it counts as training although no step of it was seen: since its launch, once that is
    assumed. None once a step was seen."""
    stop_requested_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    reason: domain.OwnersText = ""
    public_reason: str = ""
    """The same for everybody."""
    exact: bool | None = None
    proven: int = 0
    """So many steps after its resume came out as they had before."""
    refused: domain.RefusedChange = ""
    """It ended because splitting or resuming it would have changed its result."""
    stop_reason: domain.Reason | None = None
    failed_as: Literal["", "infra-failed", "user-failed"] = ""
    """The worst that a host of its gang said of it; empty: none of them said that it failed."""
    failure: domain.OwnersText = ""
    """What failed, in that host's words."""
    public_failure: str = domain.UNTOLD
    """The same for everybody."""
    launch: domain.LaunchKind = ""
    launch_why: domain.OwnersText = ""
    """Why a host did not start it warm."""
    account: AttemptAccount = msgspec.field(default_factory=AttemptAccount)
    """What it had of its devices."""
    cause: EndCause = ""
    """Why its job had to leave its devices, if somebody else was the reason."""
    waited_s: float = 0.0
    """What its job had waited in all when it was launched."""
    fraction: float = 1.0
    """Below 1: the part of its one device that it had."""
    words: domain.JobWords = domain.JobWords()
    """What it told, as its gang's first host has it."""

    energy_by_host_j: dict[domain.HostId, float] = {}
    """What the attempt used, by host, as far as it was told."""

    @property
    def is_metered(self) -> bool:
        """Each of its hosts has told what the attempt used there."""
        return self.energy_by_host_j.keys() >= set(self.hosts)

    @property
    def trains_since_s(self) -> float | None:
        """Since its first step, or since it counts as training without one."""
        return self.assumed_s if self.first_step_s is None else self.first_step_s


ALWAYS_S: Final = -float("inf")
AttemptsOf = Callable[[domain.JobId], Sequence[AttemptRecord]]
"""The attempts of a job, the oldest first."""


class HistoryNote(msgspec.Struct, frozen=True, array_like=True):
    """A note of one thing that was decided, or that ended."""

    at_s: float
    event: str
    job_id: domain.JobId | None
    what: str
    reason: domain.Reason


def resume_reason(event: ev.CapabilitiesSeen) -> domain.Reason:
    if event.exact:
        return domain.because("resumed-exact", event.step)
    return domain.because("resumed-equivalent", event.step, event.note or "something differs")


def why_it_ended(job: domain.Job, attempt_record: AttemptRecord, event: ev.AnyEvent) -> domain.Reason:
    """What ended the attempt (not what the job waits for now, nor why it has started again): a failure comes
    before a lost host, and either before the request to stop that it forestalled."""
    if job.attempt.number == attempt_record.attempt and (
        job.phase in domain.ENDED or job.phase is domain.Phase.HELD
    ):
        return job.reason
    if attempt_record.failed_as == "user-failed":
        return domain.because("user-failed", attempt_record.failure, attempt_record.public_failure)
    if attempt_record.refused == "split":
        return domain.because("unsplit", attempt_record.failure)
    if attempt_record.refused == "resume":
        return domain.because("otherwise", attempt_record.failure, job.durable_step)
    if isinstance(event, ev.HostLost):
        return domain.because("host-lost", event.host_id, event.by)
    if attempt_record.failed_as and not _went_with_host(attempt_record):
        return domain.because("infra-failed", attempt_record.failure, attempt_record.public_failure)
    if attempt_record.stop_reason is not None:
        return attempt_record.stop_reason
    return domain.because("stopped-as", *_words_of(event))


def _words_of(event: ev.AnyEvent) -> tuple[str, str]:
    if isinstance(event, ev.AttemptEnded):
        return event.verdict.said
    ended = f"ended with {type(event).__name__}"
    return ended, ended


def outcome_of(job: domain.Job, attempt_record: AttemptRecord, event: ev.AnyEvent) -> str:
    """How an attempt ended, in the words of `show`."""
    if isinstance(event, ev.HostLost):
        return "host-lost"
    if job.phase is domain.Phase.CANCELLED:
        return "cancelled"
    if attempt_record.refused and job.phase is not domain.Phase.FAILED:
        return f"{attempt_record.refused}-refused"
    if isinstance(event, ev.AttemptEnded):
        if attempt_record.failed_as and not _went_with_host(attempt_record):
            is_last = job.attempt.number == attempt_record.attempt and job.phase is domain.Phase.FAILED
            return "user-failed" if is_last and job.reason.code == "user-failed" else attempt_record.failed_as
        if event.verdict.outcome != "stopped" or attempt_record.stop_requested_s is None:
            return event.verdict.outcome
        if job.phase is domain.Phase.FAILED:
            return "stopped"
        if attempt_record.cause == "resized":
            return "resized"
        return _NOT_PREEMPTED.get(
            attempt_record.stop_reason.code if attempt_record.stop_reason else "", "preempted"
        )
    return "ended"


def _went_with_host(attempt_record: AttemptRecord) -> bool:
    """Whether the parts of an attempt on its other hosts were stopped, or failed, because one host was
    lost."""
    lost = attempt_record.stop_reason is not None and attempt_record.stop_reason.code == "host-lost"
    return lost and attempt_record.failed_as != "user-failed"


CAUSES: dict[domain.StopCause, EndCause] = {"preempted": "preempted", "user": "by-hand", "resized": "resized"}
_NOT_PREEMPTED = {"host-lost": "host-lost", "gang-peer-ended": "stopped", "fenced": "stopped"}
"""Codes of stops that follow from a failure: when a part of a gang is gone, the engine stops the rest."""


def add_if_missing(jobs: tuple[domain.JobId, ...], job_id: domain.JobId) -> tuple[domain.JobId, ...]:
    return jobs if job_id in jobs else (*jobs, job_id)


def action_in_words(
    action: domain.Place | domain.Share | domain.Preempt | domain.Resize | domain.Hold | domain.Defer,
) -> str:
    """An action as a short phrase."""
    match action:
        case domain.Place() | domain.Share():
            s = action.accumulation_steps
            steps = f" with {s} accumulation steps" if s > 1 else ""
            return f"{type(action).__name__.lower()} on {', '.join(action.devices)}{steps}"
        case domain.Preempt():
            return "preempt" + (f" for {action.for_job}" if action.for_job else "")
        case domain.Resize():
            return f"resize to {', '.join(action.devices)}"
        case domain.Hold():
            return "hold back"
        case domain.Defer():
            return "put off"
