"""What a host has of jobs, compared with the ledger: the table, and what a row does. Rule: an attempt is the
ledger's only if its number, its job's arrival and its launch are: this history and one that a restored
journal has lost may both have used a number. The engine ends what is not the ledger's, and never uses its
number again. An unknown epoch, of an attempt whose records on its host are damaged, matches every epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal, get_args

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.domain import texts
from cotenant.controller.engine.events.ending import end_job, left_host
from cotenant.controller.engine.state.dispatch import Dispatch

NUMBERS_SKIPPED_MAX = 1_000_000
"""The most numbers of jobs or attempts that a host's inventory can make us skip."""

JobIs = Literal["unknown", "other", "over", "open"]
"""other: this number belongs to a job that arrived in another epoch. over: it has ended."""
AttemptIs = Literal["ours", "twin", "newer", "older"]
"""twin: it has the number of the present attempt, but was launched in another epoch."""
StateIs = Literal["running", "ended", "kept"]
"""Its state on the host. ended: its report is on the way. kept: we confirmed its end; only files are left."""


class ClaimRuling(msgspec.Struct, frozen=True, kw_only=True):
    ours: bool = False
    """The attempt is the one that the ledger knows by this number."""
    stop: bool = False
    save: bool = False
    """Stopped with a save, if it can: the same job goes on from it later. Never beside an attempt of ours."""
    forget: bool = False
    """The host may clean up after the job."""
    skip: bool = False
    """The number is in use: the next attempt, or the next job, gets one beyond it."""


def _verdict(job: JobIs, attempt: AttemptIs, state: StateIs) -> ClaimRuling:
    running = state == "running"
    if job != "open":
        return ClaimRuling(stop=running, forget=True, skip=job != "over")
    if attempt == "ours":
        return ClaimRuling(ours=True)
    if attempt == "older":
        return ClaimRuling(stop=running)
    return ClaimRuling(stop=running, save=running, skip=True)


VERDICTS: dict[tuple[JobIs, AttemptIs, StateIs], ClaimRuling] = {
    cell: _verdict(*cell) for cell in product(get_args(JobIs), get_args(AttemptIs), get_args(StateIs))
}
"""    the job is        the attempt is    on the host    stop    save    forget    skip its number
    unknown, other    any               running        yes     no      yes       yes
    unknown, other    any               ended, kept    -       -       yes       yes
    over              any               running        yes     no      yes       no
    over              any               ended, kept    -       -       yes       no
    open              ours              any            no: adopted, its report heard, or asked about
    open              twin, newer       running        yes     yes     no        yes
    open              twin, newer       ended, kept    -       -       no        yes
    open              older             running        yes     no      no        no
    open              older             ended, kept    -       -       no        no
"""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a host's inventory, judged."""

    job_id: domain.JobId
    attempt: domain.AttemptNo
    epoch: str
    job_epoch: str
    state: StateIs
    is_same_job: bool
    verdict: ClaimRuling


def agree(known: str, said: str) -> bool:
    """Whether two tokens may be of one epoch."""
    return known == said or not said


def _judge_inventory(dispatch: Dispatch, event: ev.HostJoined) -> Iterator[Claim]:
    """Every line of the inventory."""
    for seen in event.attempts:
        yield _judge(dispatch, seen, "running" if seen.running else "ended")
    for kept in event.kept:
        yield _judge(dispatch, kept, "kept")


def _judge(dispatch: Dispatch, seen: ev.AttemptSeen | ev.JobKept, state: StateIs) -> Claim:
    job = dispatch.ledger.jobs.get(seen.job_id)
    return Claim(
        job_id=seen.job_id,
        attempt=seen.attempt,
        epoch=seen.epoch,
        job_epoch=seen.job_epoch,
        state=state,
        is_same_job=job is not None and agree(job.epoch, seen.job_epoch),
        verdict=VERDICTS[job_is(job, seen.job_epoch), attempt_is(job, seen.attempt, seen.epoch), state],
    )


def job_is(job: domain.Job | None, job_epoch: str) -> JobIs:
    if job is None:
        return "unknown"
    if not agree(job.epoch, job_epoch):
        return "other"
    return "over" if job.phase in domain.ENDED else "open"


def attempt_is(job: domain.Job | None, attempt: domain.AttemptNo, epoch: str) -> AttemptIs:
    present = job.attempt.number if job is not None else 0
    if attempt != present:
        return "newer" if attempt > present else "older"
    return "ours" if job is None or agree(job.attempt.epoch, epoch) else "twin"


# --- What a row does -------------------------------------------------------------------------------


def settle(dispatch: Dispatch, host: domain.Host, event: ev.HostJoined) -> None:
    """Make both sides agree on which attempts run on a host that has joined with this inventory."""
    ledger, host_id = dispatch.ledger, host.host_id
    claims = list(_judge_inventory(dispatch, event))
    running = {claim.job_id for claim in claims if claim.state == "running"}
    for job in [job for job in ledger.jobs.values() if host_id in job.strays and job.job_id not in running]:
        stray_gone(dispatch, job, host_id)
    for claim in claims:
        if claim.verdict.skip:
            _skip(dispatch, host_id, claim)
    for claim in claims:
        if claim.verdict.stop:
            _stop(dispatch, host_id, claim)
    held = {job.job_id: job for job in ledger.holdings.on_host(host_id)}
    ours: dict[domain.JobId, StateIs] = {claim.job_id: claim.state for claim in claims if claim.verdict.ours}
    for claim in claims:
        if claim.verdict.ours and claim.state == "running" and claim.job_id not in held:
            _end(dispatch, host_id, claim, save=False)
    for job in held.values():
        _hold_to(dispatch, host_id, job, ours.get(job.job_id))
    for job_id, job_epoch in dict.fromkeys((c.job_id, c.job_epoch) for c in claims if c.verdict.forget):
        command_id = dispatch.command_id()
        dispatch.out.append(
            domain.ForgetJob(command_id=command_id, host_id=host_id, job_id=job_id, job_epoch=job_epoch)
        )


def _hold_to(dispatch: Dispatch, host_id: domain.HostId, job: domain.Job, state: StateIs | None) -> None:
    """Compares the inventory with the attempts that the ledger has on the host."""
    if state in ("running", "ended"):
        if job.phase in domain.LEAVING:
            dispatch.send_stop(job, host_id, job.phase is domain.Phase.CHECKPOINTING)
        elif state == "running" and host_id in job.attempt.started_hosts:
            dispatch.send_limit(job, host_id)
    elif state is None and host_id not in job.attempt.started_hosts and job.phase is domain.Phase.LOADING:
        dispatch.send_start_again(job, host_id)
    else:  # It says again how that ended, or that it never will start.
        dispatch.fence(host_id, job)


def _skip(dispatch: Dispatch, host_id: domain.HostId, claim: Claim) -> None:
    """A host uses this number: no new job may have it."""
    ledger, job = dispatch.ledger, dispatch.ledger.jobs.get(claim.job_id)
    if job is None:
        digits = claim.job_id.partition("_")[0]
        number = int(digits) if texts.is_whole_number(digits) else 0
        if ledger.next_number <= number < ledger.next_number + NUMBERS_SKIPPED_MAX:
            ledger.numbers_skipped += number + 1 - ledger.next_number
            ledger.next_number = number + 1
        return
    if claim.attempt <= job.attempt.number + NUMBERS_SKIPPED_MAX:
        ledger.records.take_numbers(job, claim.attempt)
    if claim.is_same_job:
        ledger.records.was_on(job, host_id)
    # What was launched here under a number that is taken can never start; the next attempt will.
    if (
        host_id in job.attempt.hosts_left
        and host_id not in job.attempt.started_hosts
        and claim.attempt >= job.attempt.number
    ):
        if not job.attempt.stop_cause:
            ledger.records.blame_stop(
                job, "lost", domain.because("number-taken", job.attempt.number, host_id)
            )
        why = "its number was taken"
        taken = domain.ExitVerdict(outcome="never-started", detail=why, ours=why)
        left_host(dispatch, job, host_id, taken)


def _stop(dispatch: Dispatch, host_id: domain.HostId, claim: Claim) -> None:
    job = dispatch.ledger.jobs.get(claim.job_id) if claim.verdict.save else None
    _end(dispatch, host_id, claim, save=job is not None and job.phase not in domain.ON_DEVICES)
    if job is not None:
        dispatch.ledger.records.stray_on(job, host_id)
        if job.phase is domain.Phase.RESERVED:
            dispatch.unreserve(job, domain.because("stray", host_id))
        else:
            dispatch.hold_back(job)


def _end(dispatch: Dispatch, host_id: domain.HostId, claim: Claim, *, save: bool) -> None:
    """Ends exactly this attempt, even where another has its number."""
    dispatch.out.append(
        domain.StopAttempt(
            command_id=dispatch.command_id(),
            host_id=host_id,
            job_id=claim.job_id,
            attempt=claim.attempt,
            save=save,
            deadline_s=dispatch.config.policy.stop_deadline_s if save else 0.0,
            reason=domain.because("fenced", host_id),
            epoch=claim.epoch,
            job_epoch=claim.job_epoch,
        )
    )


def stray_gone(dispatch: Dispatch, job: domain.Job, host_id: domain.HostId) -> None:
    """The host no longer runs an attempt of the job that the ledger does not know."""
    dispatch.ledger.records.stray_gone(job, host_id)
    if job.phase is domain.Phase.BLOCKED and job.reason.code == "stray" and not job.strays:
        dispatch.ledger.phases.change(job, domain.Change.UNBLOCK, dispatch.submission_reason(job))
        if not dispatch.queue_or_block(job):
            end_job(dispatch, job)


# --- Epochs ----------------------------------------------------------------------------------------


def on_epoch(dispatch: Dispatch, event: ev.EpochBegan) -> None:
    """A controller has started, or knows now that its journal was restored from a copy: by the lost history a
    waiting job may be running somewhere."""
    ledger = dispatch.ledger
    ledger.begin_epoch(event.epoch, event.after, goes_on=event.restored)
    if not event.restored:
        return
    ledger.hold_until_s = max(ledger.hold_until_s, ledger.now_s + event.hold_s)
    for job in list(ledger.jobs.values()):
        if job.phase is domain.Phase.RESERVED and ledger.must_wait(job):
            dispatch.unreserve(job, job.reason)
        else:
            dispatch.hold_back(job)
