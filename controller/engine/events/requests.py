"""What users and admins ask for: events of jobs, as they come from the API."""

from __future__ import annotations

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.events.ending import end_job
from cotenant.controller.engine.stages.fair_share import rank_of
from cotenant.controller.engine.state import estimating
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.records import REQUEUED
from cotenant.controller.performance import SeenBatch, alone_step_s


def on_arrived(dispatch: Dispatch, event: ev.JobArrived) -> None:
    """A job has arrived: it waits in the queue, waits for another job, or is held."""
    ledger, spec, now_s = dispatch.ledger, event.spec, dispatch.ledger.now_s
    if spec.job_id in ledger.jobs:
        return  # The same submission, journalled twice.
    profile = estimating.known_profile(ledger, spec)
    by = ("held-by", spec.user or "its owner") if spec.hold else ("submitted", spec.user or "somebody")
    job = domain.Job(
        spec=spec,
        number=ledger.next_number,
        submitted_s=now_s,
        epoch=ledger.epoch.token,
        rank=rank_of(spec.priority),
        phase=domain.Phase.HELD if spec.hold else domain.QUEUED,
        phase_since_s=now_s,
        reason=domain.because(*by),
        progress=domain.JobProgress(resumable=spec.resumable is True),
        measured=domain.JobMeasurements(
            profile=profile,
            profile_given=profile is not None,
            batch=SeenBatch() if profile is None else profile.batch,
            solo_step_s=alone_step_s(profile, spec.gang),
            curve=estimating.curve_at_arrival(ledger, spec) if spec.gpus_max > spec.gpus_min else None,
        ),
        estimate=estimating.first_estimate(ledger, spec, profile),
    )
    ledger.next_number += 1
    ledger.phases.add(job)
    ledger.siblings.add(job)
    if spec.array_limit:
        ledger.join_array(job)
    if not spec.hold and not dispatch.queue_or_block(job):
        end_job(dispatch, job)


def on_cancel(dispatch: Dispatch, event: ev.CancelRequested) -> None:
    """A waiting job ends at once, a job on devices when its processes are gone."""
    job = dispatch.ledger.jobs.get(event.job_id)
    if job is None or job.phase in domain.ENDED:
        return
    reason = domain.because("cancelled-by", event.by)
    if job.phase is domain.Phase.RESERVED:
        dispatch.unreserve(job, reason, domain.Change.CANCEL)
        end_job(dispatch, job)
    elif job.phase in domain.WAITING:
        dispatch.ledger.phases.change(job, domain.Change.CANCEL, reason)
        end_job(dispatch, job)
    else:
        dispatch.stop(job, "cancelled", reason, save=False, interrupt=event.interrupt)


def on_hold(dispatch: Dispatch, event: ev.HoldRequested) -> None:
    """A waiting job does not start until it is released; a job on devices goes on."""
    job = dispatch.ledger.jobs.get(event.job_id)
    if job is None:
        return
    if job.phase is domain.Phase.RESERVED:
        dispatch.unreserve(job, domain.because("held-by", event.by), domain.Change.HOLD)
    elif job.phase in (domain.Phase.QUEUED, domain.Phase.BLOCKED):
        dispatch.ledger.phases.change(job, domain.Change.HOLD, domain.because("held-by", event.by))
    if job.spec.array_limit:
        dispatch.fill_array(job)


def on_release(dispatch: Dispatch, event: ev.ReleaseRequested) -> None:
    """A held job waits in the queue again, whatever it was held for."""
    job = dispatch.ledger.jobs.get(event.job_id)
    if job is None or job.phase is not domain.Phase.HELD:
        return
    dispatch.ledger.records.release(job, dispatch.submission_reason(job))
    if not dispatch.queue_or_block(job):
        end_job(dispatch, job)


def on_preempt(dispatch: Dispatch, event: ev.PreemptRequested) -> None:
    """A resumable job saves and leaves its devices."""
    job = dispatch.ledger.jobs.get(event.job_id)
    if (
        job is not None
        and job.phase in (domain.Phase.RUNNING, domain.Phase.LOADING)
        and job.progress.resumable
    ):
        dispatch.stop(job, "user", domain.because("preempted-by-user", event.by), save=True)


def on_requeue(dispatch: Dispatch, event: ev.RequeueRequested) -> None:
    """A job leaves its devices, with a save if it can resume, and waits again; one that has ended waits again
    as itself, and goes on from its last save."""
    job = dispatch.ledger.jobs.get(event.job_id)
    if job is None:
        return
    if job.phase in (domain.Phase.RUNNING, domain.Phase.LOADING):
        dispatch.stop(job, "user", domain.because(REQUEUED, event.by), save=True)
    elif job.phase in domain.ENDED:
        left_s = estimating.remaining_from(dispatch.ledger, job, job.durable_step)
        dispatch.ledger.records.begin_again(job, domain.because("again-by", event.by, job.phase), left_s)
        dispatch.ledger.siblings.add(job)
        if job.spec.array_limit:
            dispatch.ledger.join_array(job)
        if not dispatch.queue_or_block(job):
            end_job(dispatch, job)


def on_spec_changed(dispatch: Dispatch, event: ev.SpecChanged) -> None:
    """Options of a job change; its estimates and its time limit follow. Of one that holds devices only what
    is safe."""
    ledger, job = dispatch.ledger, dispatch.ledger.jobs.get(event.job_id)
    if job is None or job.phase in domain.ENDED:
        return
    if job.phase not in domain.WAITING and not set(event.changes) <= set(domain.SET_ON_DEVICES):
        return
    before, spec = job.spec, msgspec.structs.replace(job.spec, **event.changes)
    ledger.records.respecify(job, spec)
    ledger.siblings.add(job)
    ledger.records.rank(job, rank_of(spec.priority))
    if spec.time_limit_s != before.time_limit_s and job.phase in (domain.Phase.LOADING, domain.Phase.RUNNING):
        dispatch.change_limit(job)
    if spec.idle != before.idle and job.attempt.idle is not None:
        ledger.records.idle(job, None)  # What is due by the new rule, the next heartbeat says.
    if (spec.expected_s, spec.iterations) == (before.expected_s, before.iterations):
        return
    if job.attempt.number == 0:
        ledger.records.expect(
            job, *estimating.estimate_arrival(ledger.estimates, spec, job.measured.profile, ledger.siblings)
        )
    elif spec.expected_s is not None and spec.expected_s != before.expected_s:
        ledger.records.expect(job, max(0.0, spec.expected_s - job.spent.run_s), "user")
    else:
        ledger.records.expect(
            job, estimating.remaining_from(ledger, job, job.durable_step), estimating.steps_in_all(job)[1]
        )


def on_checkpoint(dispatch: Dispatch, event: ev.CheckpointRequested) -> None:
    """A running job saves and goes on."""
    job = dispatch.ledger.jobs.get(event.job_id)
    if job is None or job.phase is not domain.Phase.RUNNING or not job.progress.resumable:
        return
    assert job.placement is not None
    first = dispatch.ledger.holdings.host_of(job.placement.devices[0])
    dispatch.out.append(
        domain.SaveAttempt(
            command_id=dispatch.command_id(),
            host_id=first,
            job_id=job.job_id,
            attempt=job.attempt.number,
            job_epoch=job.epoch,
        )
    )


def on_booking_made(dispatch: Dispatch, event: ev.BookingMade) -> None:
    """The reservation waits for its time; which devices it has is chosen before the policy is asked."""
    if event.booking.booking_id not in dispatch.ledger.bookings.open:
        dispatch.ledger.bookings.add(event.booking, dispatch.ledger.now_s)
        dispatch.ledger.phases.asked_for.add("booking")


def on_booking_cancelled(dispatch: Dispatch, event: ev.BookingCancelled) -> None:
    """Its devices are as others; its owner's jobs go on there."""
    each = dispatch.ledger.bookings.open.get(event.booking_id)
    if each is not None:
        dispatch.ledger.open_devices(each.own)
        dispatch.ledger.bookings.drop(each)
        dispatch.ledger.look_who_stays()


def on_allocation_queue(dispatch: Dispatch, event: ev.AllocationQueueChanged) -> None:
    """Changes nothing in the engine: the part that asks Slurm for hosts reads the event."""


def on_allocation(dispatch: Dispatch, event: ev.AllocationChanged) -> None:
    """Changes nothing in the engine: the part that asks Slurm for hosts reads the event."""


def on_shadow_changed(dispatch: Dispatch, event: ev.ShadowChanged) -> None:
    """Changes nothing in the engine: the part that asks the shadow reads the event."""
