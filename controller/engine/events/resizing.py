"""An elastic job is given other devices while it trains: more, fewer, or others.

Rule: the lifecycle is that of a preemption: one attempt saves at a step that its ranks agree on, the next
begins there on the new devices. In between the job has a claim on all of them (those of its own that it keeps
included), so no other job gets one; where the claim cannot be kept the job is preempted.

    RUNNING --Resize--> CHECKPOINTING --all processes are gone--> QUEUED --> RESERVED --> LOADING
                        claims the new devices                    (within one event unless others still leave)

    what happens meanwhile                              then
    the save misses its deadline, or fails              it goes on there from its last durable step
    a host it leaves is lost                            likewise: its processes there count as gone
    a host it is to get is lost, silent, drained, new   the claim is given up: it waits in the queue
    it finishes, or is cancelled                        the claim is given up
    the controller is killed                            the journal has the resize, and so the claim
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import LEAVE, RUNNING, Job, Phase, Place, Reason, Resize, because
from cotenant.controller.engine.stages.limits import Limits
from cotenant.controller.engine.state import placing
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.estimating import learn_pause, remaining_from
from cotenant.controller.engine.state.ledger import Ledger

ROUNDING_S: Final = 1e-6


def resize(
    dispatch: Dispatch, limits: Limits | None, action: Resize, *, policy_shares: bool
) -> Reason | None:
    """Begins the resize if that is allowed; else returns why not."""
    ledger, job = dispatch.ledger, dispatch.ledger.jobs.get(action.job_id)
    if job is None or job.phase is not RUNNING:
        return because("refused-phase", f"to resize job {action.job_id}", job.phase if job else "gone")
    refusal = _check_job(ledger, job, action, dispatch.config.policy.resize_lease_s)
    refusal = refusal or _check_devices(ledger, job, action)
    if refusal is None and limits is not None:
        refusal = limits.check(job, len(action.devices))
    if refusal is not None:
        return refusal
    placement = placing.placement(ledger, job, action, policy_shares=policy_shares)
    ledger.records.resize(job, placement)
    ledger.holdings.claim(job, placement.devices)
    dispatch.stop(job, "resized", action.reason, save=True)
    return None


def _check_job(ledger: Ledger, job: Job, action: Resize, lease_s: float) -> Reason | None:
    spec, partners = job.spec, ledger.holdings.partners(job)
    assert job.placement is not None
    trained_s = ledger.now_s - job.phase_since_s
    if not spec.is_elastic:
        return because("refused-rigid", job.job_id, "it was not submitted with --gpus MIN-MAX")
    if not job.preemptible:
        return because(
            "refused-rigid",
            job.job_id,
            "it cannot resume" if spec.job_class == "spot" else "it has class hp",
        )
    if partners:
        return because("refused-rigid", job.job_id, f"it shares a device with job {partners[0]}")
    if set(action.devices) == set(job.placement.devices):
        return because("refused-rigid", job.job_id, "it has these devices")
    if trained_s < lease_s - ROUNDING_S:
        return because("refused-lease", job.job_id, trained_s, lease_s)
    return None


def _check_devices(ledger: Ledger, job: Job, action: Resize) -> Reason | None:
    assert job.placement is not None
    # Its next checkpoint is written where it is now.
    domains = {ledger.hosts[host_id].checkpoint_domain for host_id in job.attempt.hosts_left}
    for device_id in action.devices:
        host = ledger.hosts.get(ledger.holdings.host_of(device_id))
        if host is not None and {host.checkpoint_domain} != domains:
            what = f"to resize job {job.job_id}"
            return because("refused-devices", what, device_id, "its checkpoints cannot be read there")
    place = Place(job_id=job.job_id, devices=action.devices, reason=action.reason)
    return placing.check_places(ledger, job, place, own=job.placement.devices)


def go_on(dispatch: Dispatch, job: Job, reason: Reason) -> None:
    """The processes of a resized job are gone: it goes on with what it has a claim on, if anything."""
    ledger, placement = dispatch.ledger, job.resize_to
    if job.phase is Phase.CHECKPOINTING:
        learn_pause(ledger, job)
    step = job.durable_step
    ledger.records.requeue(job, LEAVE, reason, step, remaining_from(ledger, job, step))
    if placement is not None and ledger.must_wait(job) is None:
        ledger.records.reserve_resized(job)
        dispatch.vacated += placement.devices  # Those who have a claim on these are looked at.
        return
    if placement is not None:
        dispatch.give_up_resize(job)
    dispatch.enqueue(job)
    if job.spec.array_limit:
        dispatch.fill_array(job)
