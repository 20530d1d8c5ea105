"""Hosts that fail attempts: blamed, tried again with one attempt, and cleared by a first step."""

from __future__ import annotations

from cotenant.controller.domain.cluster import SUSPECT_AFTER, Host, HostState
from cotenant.controller.domain.job import Job
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.engine.dispatch import Dispatch

PROBATION_S = 300.0
"""A suspect host is tried again with one attempt after this."""


def blame(dispatch: Dispatch, host: Host, job: Job) -> None:
    """An attempt failed here for reasons of the host, as far as is known."""
    if host.host_id in job.avoid:
        return  # It failed here before and never got going since: that may be its own doing.
    host.failures_in_row += 1
    job.avoid = tuple(dict.fromkeys((*job.avoid, host.host_id)))[-3:]
    if host.failures_in_row >= SUSPECT_AFTER:
        host.reason = because("suspect", host.host_id, host.failures_in_row)
        dispatch.ledger.refresh_host(host)
        dispatch.drop_reservations(host.host_id, host.reason)
        dispatch.wake_at(dispatch.ledger.now_s + PROBATION_S, "probation", host.host_id, 0)


def clear_suspicion(dispatch: Dispatch, host: Host) -> None:
    """An attempt got going here, or finished."""
    if host.failures_in_row:
        host.failures_in_row = 0
        host.reason = host.reason if host.lost else host_reason(host)
        dispatch.ledger.refresh_host(host)


def host_reason(host: Host) -> Reason | None:
    """Why it gets no new work, for as long as it is heard."""
    if host.drained_by:
        return because("drained", host.host_id)
    if host.state is HostState.SUSPECT:
        return because("suspect", host.host_id, host.failures_in_row)
    return None
