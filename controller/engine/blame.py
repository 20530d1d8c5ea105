"""Who is blamed for an attempt that failed: its host, or a job that shared its device.

Rule: what a job does to itself may look like a failure of its host, so the jobs of one user alone never make
a host suspect. It takes jobs of two users, or the host's own report (`AttemptEnded.host_fault`). A suspect
host is tried again with one attempt, and cleared by a first step.

Rule: after a fatal fault of a GPU no job loses more than the time since its last checkpoint, and no job fails
for another's fault. A job that had its device to itself fails, as with any crash; all others go on later. The
pair is kept apart for a time that doubles with each fault, since one fault may be
chance and ten are not; a job with enough evidence against it runs alone from then on. A device that failed by
itself blames no pair, and no host: the agent has taken it out already.

A gang's hosts report its end in any order, and a host that lost a peer often reports first: a fault that
another host reports is still the reason (`peer` is only a consequence), and nobody is blamed before all hosts
have reported.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import AttemptEnded, GpuFaultRole, Host, HostState, Job, Reason, because
from cotenant.controller.engine.dispatch import Dispatch

PROBATION_S = 300.0
"""A suspect host is tried again with one attempt after this."""


def blame(dispatch: Dispatch, host: Host, job: Job) -> None:
    """An attempt failed on this host, and as far as is known the host is why."""
    by_itself = host.host_id in job.host_faults
    if host.host_id in job.avoid and not by_itself:
        return  # It failed here before and never got going since: that may be its own doing.
    host.failures_in_row += 1
    if len(host.failed_users) < 2 and job.spec.user not in host.failed_users:
        host.failed_users = (*host.failed_users, job.spec.user)
    host.failed_itself = host.failed_itself or by_itself
    dispatch.ledger.avoid(job, host.host_id)
    if host.is_suspect:
        host.reason = because("suspect", host.host_id, host.failures_in_row)
        dispatch.ledger.refresh_host(host)
        dispatch.drop_reservations(host.host_id, host.reason)
        dispatch.wake_at(dispatch.ledger.now_s + PROBATION_S, "probation", host.host_id, 0)


def clear_suspicion(dispatch: Dispatch, host: Host) -> None:
    """An attempt made its first step here, or finished, where others had failed."""
    acquit(host)
    host.reason = host.reason if host.lost else host_reason(host)
    dispatch.ledger.refresh_host(host)


def acquit(host: Host) -> None:
    host.failures_in_row, host.failed_users, host.failed_itself = 0, (), False


def host_reason(host: Host) -> Reason | None:
    """Why a host that still reports gets no new work."""
    if host.drained_by:
        return because("drained", host.host_id)
    if host.state is HostState.SUSPECT:
        return because("suspect", host.host_id, host.failures_in_row)
    return None


EVIDENCE: Final[dict[GpuFaultRole, int]] = {"culprit": 2, "suspect": 1}


def take_in(dispatch: Dispatch, job: Job, event: AttemptEnded) -> None:
    """Called before the job leaves its devices, while its co-tenants are still known."""
    if event.outcome != "infra-failed":
        return
    ledger = dispatch.ledger
    if job.stop_cause in ("", "peer"):
        ledger.blame_stop(job, "faulted", because("gpu-fault", event.detail or "a fault of its GPU"))
    evidence = EVIDENCE.get(event.gpu_fault, 0)
    ledger.suspect(job, evidence)
    for device_id in ledger.holdings.held_by(job, event.host_id):
        for other_id in ledger.tenants(device_id):
            other = ledger.jobs[other_id]
            if other is not job and event.gpu_fault != "device":
                struck = (job, other) if evidence else (other, job)
                key, until_s = ledger.pairs.faulted(*struck, ledger.now_s)
                dispatch.wake_at(until_s, "reunite", key, 0)
