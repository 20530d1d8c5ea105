"""What becomes known of hosts: they join, fall silent, are lost, drained and resumed, and leave at a known
time.

Rule: nothing is placed where a load and a save take longer than the host stays (`suits`). At its limit less
the grace a host that leaves (an allocation of somebody else's queue) takes no more work, and its jobs save,
wait and go on elsewhere. One that cannot resume runs on until the host is gone: it has nothing to win by
leaving earlier.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.events import claims
from cotenant.controller.engine.events.ending import acquit, host_reason, left_host
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.estimating import remaining_from

ALLOCATION: Final = "allocation"
"""`by` of a host that leaves, or is lost, because its allocation ends."""


def on_joined(dispatch: Dispatch, event: ev.HostJoined) -> None:
    """Register the host, then make both sides agree on which attempts run there."""
    ledger = dispatch.ledger
    known = ledger.hosts.get(event.report.host_id)
    report = ledger.bookings.as_closed(event.report)
    hurt = _hurt(known.report, report) if known is not None else frozenset()
    known_before = known.report.allocation if known is not None else ""
    host = ledger.put_host(event.report)
    host.silent = host.lost = False
    _note_leaving(dispatch, host, known_before, event)
    host.reason = host_reason(host)
    ledger.refresh_host(host)
    if hurt:
        dispatch.drop_reservations(host.host_id, domain.because("host-changed", host.host_id), hurt)
    _heard_again(dispatch, host.host_id)
    claims.settle(dispatch, host, event)


def _hurt(before: domain.HostReport, now: domain.HostReport) -> frozenset[domain.DeviceId]:
    """Devices on which an earlier reservation does not hold any more: all of them where the host itself or
    its list of devices is new. A changed note about a device changes nothing."""
    devices = {device.device_id: device for device in now.devices}
    plain = msgspec.structs.replace(before, devices=now.devices)
    everything = frozenset(device.device_id for device in before.devices)
    if plain != now or devices.keys() != everything:
        return everything
    return frozenset(
        device.device_id
        for device in before.devices
        if msgspec.structs.replace(device, note="")
        != msgspec.structs.replace(devices[device.device_id], note="")
    )


def on_silent(dispatch: Dispatch, event: ev.HostSilent) -> None:
    """The host gets no new work; its jobs keep their devices."""
    _flag_host(dispatch, event.host_id, silent=True)
    for job in dispatch.ledger.holdings.on_host(event.host_id):
        dispatch.ledger.records.explain(job, _silence(dispatch, job, event.host_id))
    dispatch.drop_reservations(event.host_id, domain.because("not-answering", event.host_id))


def on_back(dispatch: Dispatch, event: ev.HostBack) -> None:
    """The host reports again, before its lease ended."""
    _flag_host(dispatch, event.host_id, silent=False)
    _heard_again(dispatch, event.host_id)


def _silence(dispatch: Dispatch, job: domain.Job, host_id: domain.HostId) -> domain.Reason:
    return domain.because("host-silent-lease" if job.ends_with_lease else "host-silent", host_id)


def _heard_again(dispatch: Dispatch, host_id: domain.HostId) -> None:
    """Correct what the records said about its jobs while it was silent."""
    for job in dispatch.ledger.holdings.on_host(host_id):
        if job.reason in (_silence(dispatch, job, host_id), domain.because("host-silent", host_id)):
            assert job.placement is not None
            dispatch.ledger.records.explain(job, job.attempt.stop_reason or job.placement.reason)


def _flag_host(dispatch: Dispatch, host_id: domain.HostId, *, silent: bool) -> None:
    host = dispatch.ledger.hosts.get(host_id)
    if host is not None:
        host.silent = silent
        dispatch.ledger.refresh_host(host)


def on_lost(dispatch: Dispatch, event: ev.HostLost) -> None:
    """Takes a host out as lost: its resumable jobs go on elsewhere; the others wait for it unless an admin
    gave it up."""
    host = dispatch.ledger.hosts.get(event.host_id)
    if host is None:
        return
    host.lost = True
    host.reason = domain.because("host-lost", event.host_id, event.by)
    dispatch.ledger.refresh_host(host)
    for job in dispatch.ledger.jobs.values():
        if event.host_id in job.strays and (job.progress.resumable or event.by != "lease"):
            claims.stray_gone(dispatch, job, event.host_id)
    for job in dispatch.ledger.holdings.on_host(event.host_id):
        if job.ends_with_lease or event.by != "lease":
            if not job.attempt.stop_cause:
                dispatch.ledger.records.blame_stop(job, "lost", host.reason)
            why = f"host {event.host_id} is lost"
            lost = domain.ExitVerdict(outcome="infra-failed", detail=why, ours=why)
            left_host(dispatch, job, event.host_id, lost)
        else:
            dispatch.ledger.records.explain(job, domain.because("host-silent", event.host_id))
    dispatch.drop_reservations(event.host_id, host.reason)
    if event.by not in ("lease", ALLOCATION):  # What one has saved, the next one finds.
        _give_up_checkpoints(dispatch, host.checkpoint_domain)


def _give_up_checkpoints(dispatch: Dispatch, checkpoint_domain: str) -> None:
    """An admin said that a host will not come back; what only it could read is lost with it."""
    if any(
        host.checkpoint_domain == checkpoint_domain and not host.lost
        for host in dispatch.ledger.hosts.values()
    ):
        return
    for job in dispatch.ledger.jobs.values():
        if job.phase not in domain.ENDED and any(
            c.domain == checkpoint_domain for c in job.progress.checkpoints
        ):
            dispatch.ledger.records.lose_checkpoints(job, checkpoint_domain)
            if job.phase not in domain.ON_DEVICES:
                dispatch.ledger.records.expect(job, remaining_from(dispatch.ledger, job, job.progress.step))


def on_drained(dispatch: Dispatch, event: ev.HostDrained) -> None:
    """The host gets no new work until it is resumed."""
    host = dispatch.ledger.hosts.get(event.host_id)
    if host is not None:
        host.drained_by, host.reason = event.by, domain.because("drained", event.host_id)
        dispatch.ledger.refresh_host(host)
        dispatch.drop_reservations(event.host_id, host.reason)


def on_leaving(dispatch: Dispatch, event: ev.HostLeaving) -> None:
    """The host gets no new work, and its jobs save and leave."""
    host = dispatch.ledger.hosts.get(event.host_id)
    if host is not None and not host.lost:
        _clear(dispatch, host, event.by)


def on_resumed(dispatch: Dispatch, event: ev.HostResumed) -> None:
    """The host gets work again, and nothing is held against it; nor against its suspect or draining
    devices."""
    host = dispatch.ledger.hosts.get(event.host_id)
    if host is not None:
        if any(device.state in ("suspect", "draining") for device in host.report.devices):
            command_id = dispatch.command_id()
            dispatch.out.append(domain.TrustDevices(command_id=command_id, host_id=host.host_id))
        host.drained_by = ""
        acquit(host)
        host.reason = host.reason if host.lost else None
        dispatch.ledger.refresh_host(host)


def _note_leaving(dispatch: Dispatch, host: domain.Host, known_before: str, event: ev.HostJoined) -> None:
    """Notes when a host leaves that has joined. `known_before`: of which allocation the host of this name
    was. Another is another machine."""
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


def leave_if_due(dispatch: Dispatch, host_id: domain.HostId) -> None:
    """A host's time to leave may have come; not if its end has moved since."""
    host = dispatch.ledger.hosts.get(host_id)
    if host is None or host.lost or host.clears_at_s is None:
        return
    if dispatch.ledger.now_s >= host.clears_at_s and host.drained_by != ALLOCATION:
        _clear(dispatch, host, ALLOCATION)


def _clear(dispatch: Dispatch, host: domain.Host, by: str) -> None:
    """Gives the host no new work and asks its jobs to save and leave."""
    why = "its allocation ends" if by == ALLOCATION else by
    host.drained_by, host.reason = ALLOCATION, domain.because("leaving", host.host_id, why)
    dispatch.ledger.refresh_host(host)
    dispatch.drop_reservations(host.host_id, host.reason)
    for job in dispatch.ledger.holdings.on_host(host.host_id):
        if job.phase is domain.Phase.LOADING or (
            job.phase is domain.Phase.RUNNING and job.progress.resumable
        ):
            dispatch.stop(job, "preempted", host.reason, save=True)
