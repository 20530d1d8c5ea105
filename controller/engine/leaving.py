"""Hosts that go away at a known time: the part of a cluster that is an allocation of somebody else's queue.

Rule: nothing is placed where a load and a save take longer than the host stays (`suits`). At its limit less
the grace it takes no more work, and its jobs save, wait and go on elsewhere. One that cannot resume runs on
until the host is gone: it has nothing to win by leaving earlier.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import Host, HostId, HostJoined, Phase, because
from cotenant.controller.engine.blame import acquit
from cotenant.controller.engine.dispatch import Dispatch

ALLOCATION: Final = "allocation"
"""`by` of a host that leaves, or is lost, because its allocation ends."""


def joined(dispatch: Dispatch, host: Host, known_before: str, event: HostJoined) -> None:
    """`known_before`: of which allocation the host of this name was. Another is another machine."""
    report, now_s = event.report, dispatch.ledger.now_s
    if report.allocation != known_before:
        host.drained_by = ""
        acquit(host)
    if event.leaves_in_s is None:
        if host.clears_at_s is not None:
            dispatch.ledger.stays_until(host, None)
        return
    clears_at_s = now_s + max(0.0, event.leaves_in_s - report.leave_grace_s)
    dispatch.ledger.stays_until(host, clears_at_s)
    dispatch.wake_at(clears_at_s, "leave", host.host_id, 0)


def ring(dispatch: Dispatch, host_id: HostId) -> None:
    """A host's time to leave may have come; not if its end has moved since."""
    host = dispatch.ledger.hosts.get(host_id)
    if host is None or host.lost or host.clears_at_s is None:
        return
    if dispatch.ledger.now_s >= host.clears_at_s and host.drained_by != ALLOCATION:
        clear(dispatch, host, ALLOCATION)


def clear(dispatch: Dispatch, host: Host, by: str) -> None:
    """Gives the host no new work and asks its jobs to save and leave."""
    why = "its allocation ends" if by == ALLOCATION else by
    host.drained_by, host.reason = ALLOCATION, because("leaving", host.host_id, why)
    dispatch.ledger.refresh_host(host)
    dispatch.drop_reservations(host.host_id, host.reason)
    for job in dispatch.ledger.holdings.on_host(host.host_id):
        if job.phase is Phase.LOADING or (job.phase is Phase.RUNNING and job.resumable):
            dispatch.stop(job, "preempted", host.reason, save=True)
