"""Hosts that fail attempts: blamed, tried again with one attempt, and cleared by a first step.

Rule: what a job does to itself may look like a failure of its host, so the jobs of one user alone never make
a host suspect. It takes those of two, or the host's own word (`AttemptEnded.host_fault`).
"""

from __future__ import annotations

from cotenant.controller.domain.cluster import Host, HostState
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.engine.dispatch import Dispatch

PROBATION_S = 300.0
"""A suspect host is tried again with one attempt after this."""


def blame(dispatch: Dispatch, host: Host, job: Job) -> None:
    """An attempt failed here for reasons of the host, as far as is known."""
    by_itself = host.host_id in job.host_faults
    if host.host_id in job.avoid and not by_itself:
        return  # It failed here before and never got going since: that may be its own doing.
    host.failures_in_row += 1
    if len(host.failed_users) < 2 and job.spec.user not in host.failed_users:
        host.failed_users = (*host.failed_users, job.spec.user)
    host.failed_itself = host.failed_itself or by_itself
    job.avoid = tuple(dict.fromkeys((*job.avoid, host.host_id)))[-3:]
    if host.is_suspect:
        host.reason = because("suspect", host.host_id, host.failures_in_row)
        dispatch.ledger.refresh_host(host)
        dispatch.drop_reservations(host.host_id, host.reason)
        dispatch.wake_at(dispatch.ledger.now_s + PROBATION_S, "probation", host.host_id, 0)


def clear_suspicion(dispatch: Dispatch, host: Host) -> None:
    """An attempt got going here, or finished."""
    if host.failures_in_row:
        acquit(host)
        host.reason = host.reason if host.lost else host_reason(host)
        dispatch.ledger.refresh_host(host)


def acquit(host: Host) -> None:
    host.failures_in_row, host.failed_users, host.failed_itself = 0, (), False


def host_reason(host: Host) -> Reason | None:
    """Why it gets no new work, for as long as it is heard."""
    if host.drained_by:
        return because("drained", host.host_id)
    if host.state is HostState.SUSPECT:
        return because("suspect", host.host_id, host.failures_in_row)
    return None
