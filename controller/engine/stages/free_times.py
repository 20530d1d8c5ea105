"""When devices become free, as far as it can be known, and the first time at which a gang fits.

Rule: unknown counts as never: a job of unknown length leaves at infinity, and so does one that shares its
devices, since its pace depends on the other; unless a time limit ends it. A job that is late is expected to
be as late again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import bookings
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.planning import Plan, hard_s

NEAR_S: Final = 0.01
"""Times nearer than this are the same: a save loses up to a step of a simulated job."""
STARTS_MAX: Final = 1_000
FreeTimes = dict[domain.DeviceId, float]
"""Device that takes work -> when it becomes free."""
CanMove = Callable[[domain.Job], bool]
"""Whether a job can be asked to make room."""


class KeptDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that are kept for a job, from a time on."""

    job_id: domain.JobId
    devices: tuple[domain.DeviceId, ...]
    from_s: float
    until_s: float
    """The job is expected to end before this."""

    def overlaps(self, from_s: float, until_s: float) -> bool:
        return self.from_s < until_s - NEAR_S and self.until_s > from_s + NEAR_S


def need_s(job: domain.Job, now_s: float) -> float | None:
    """Loading and training that a waiting job has before it; None: nobody knows."""
    left_s = job.known_left_s(now_s)
    return None if left_s is None else job.estimate.load_s + left_s


def leaves_s(ledger: Ledger, job: domain.Job) -> float:
    """When a job that holds devices, or waits for its victims to leave them, will have left by itself."""
    limit_left_s = job.limit_left_s(ledger.now_s)
    if limit_left_s is None or job.phase in domain.LEAVING:
        return _expected_to_leave_s(ledger, job)
    begins_s = start_s(ledger, job.waits_for) if job.phase is domain.RESERVED else ledger.now_s
    return min(_expected_to_leave_s(ledger, job), begins_s + limit_left_s + job.estimate.pause_s)


def _expected_to_leave_s(ledger: Ledger, job: domain.Job) -> float:
    """When a job will have left its devices by itself, as far as its length is known, whatever its time
    limit."""
    now_s = ledger.now_s
    if job.phase in domain.LEAVING:
        return _later(job.phase_since_s + job.estimate.pause_s, now_s)
    left_s = job.known_left_s(now_s)
    if left_s is None or (
        job.placement is not None and job.phase is not domain.RESERVED and ledger.holdings.partners(job)
    ):
        return inf
    if job.phase is domain.RESERVED:
        return start_s(ledger, job.waits_for) + job.estimate.load_s + left_s
    if job.phase is domain.LOADING:
        return _later(job.phase_since_s + job.estimate.load_s, now_s) + left_s
    assert job.estimate.remaining_s is not None
    return _later(job.estimate.remaining_at_s + job.estimate.remaining_s * job.estimate.slowdown, now_s)


def start_s(ledger: Ledger, victims: Iterable[domain.JobId]) -> float:
    """When these will have left, if they leave now."""
    begins_s = ledger.now_s
    for victim_id in victims:
        victim = ledger.jobs.get(victim_id)
        if victim is not None and victim.attempt.hosts_left:
            begins_s = max(begins_s, moved_s(ledger, victim))
    return begins_s


def moved_s(ledger: Ledger, job: domain.Job) -> float:
    """When a job has left if it is asked to now."""
    if job.phase in domain.LEAVING:
        return leaves_s(ledger, job)
    if job.phase is domain.RESERVED:
        return start_s(ledger, job.waits_for)
    return ledger.now_s + job.estimate.pause_s


def when_free(ledger: Ledger, can_move: CanMove | None = None) -> FreeTimes:
    """When each device that takes work becomes free. `can_move`: which jobs may be asked to make room."""
    found: FreeTimes = {}
    for device_id, device in ledger.devices.items():
        host = ledger.hosts.get(device.host_id)
        if device.healthy and host is not None and host.takes_work:
            here = ledger.holdings.holders(device_id)
            found[device_id] = max((free_of(ledger, each, can_move) for each in here), default=ledger.now_s)
    return found


def free_of(ledger: Ledger, job: domain.Job, can_move: CanMove | None) -> float:
    """When its devices are free of one job."""
    by_itself_s = leaves_s(ledger, job)
    if can_move is None or not can_move(job):
        return by_itself_s
    return min(by_itself_s, moved_s(ledger, job))


def first_fit(
    ledger: Ledger,
    job: domain.Job,
    needs_s: float,
    free: Mapping[domain.DeviceId, float],
    kept: Collection[KeptDevices],
) -> KeptDevices | None:
    """The first time at which a whole gang finds devices that are free for as long as it needs them."""
    now_s = ledger.now_s
    if ledger.bookings.open:
        kept = (*kept, *reserved_times(ledger, job, needs_s))
    later = {at_s for at_s in chain(free.values(), (each.until_s for each in kept)) if now_s < at_s < inf}
    for from_s in sorted({now_s, *later})[:STARTS_MAX]:
        until_s = from_s + needs_s
        taken = {d for each in kept if each.overlaps(from_s, until_s) for d in each.devices}
        open_then = [d for d, at_s in free.items() if at_s <= from_s + NEAR_S and d not in taken]
        devices = find_gang(ledger, job, open_then) if len(open_then) >= job.spec.gpus else None
        if devices is not None:
            return KeptDevices(job_id=job.job_id, devices=devices, from_s=from_s, until_s=until_s)
    return None


def reserved_times(ledger: Ledger, job: domain.Job, needs_s: float) -> Iterator[KeptDevices]:
    """The times at which a job that is expected to need so long might be in the way of a user's reservation:
    earlier by what it may need beyond."""
    more_s = max(0.0, hard_s(job, ledger.now_s) - needs_s)
    for each in ledger.bookings.open.values():
        booking, devices = each.booking, each.devices
        if booking.every_s and more_s + needs_s > booking.every_s - booking.length_s:
            yield KeptDevices(job_id=domain.JobId(""), devices=devices, from_s=-inf, until_s=inf)
            continue
        for at_s in booking.begins_between(ledger.now_s, ledger.now_s + 2 * bookings.AHEAD_S):
            until_s = at_s + booking.length_s
            yield KeptDevices(job_id=domain.JobId(""), devices=devices, from_s=at_s - more_s, until_s=until_s)


def find_gang(
    ledger: Ledger, job: domain.Job, devices: Sequence[domain.DeviceId]
) -> tuple[domain.DeviceId, ...] | None:
    """Devices for the gang, as if these were free and no others."""
    plan = Plan(ledger)
    wanted: dict[tuple[domain.HostId, str], list[domain.DeviceId]] = defaultdict(list)
    for device_id in devices:
        device = ledger.devices[device_id]
        wanted[device.host_id, device.type].append(device_id)
    for host in ledger.hosts.values():
        for type in {device.type for device in host.report.devices}:
            now = list(ledger.free.devices[host.host_id, type])
            then = wanted.get((host.host_id, type), [])
            plan.suppose_taken(host.host_id, type, [each for each in now if each not in then])
            plan.suppose_free(host.host_id, type, [each for each in then if each not in now])
    if domain.asks_hosts(job.spec):
        free = set(devices)
        holders = (
            *ledger.running.jobs_by_end(),
            *(ledger.jobs[each] for each in ledger.holdings.claimants()),
        )
        plan.suppose_gone(h.job_id for h in holders if h.placement and free.issuperset(h.placement.devices))
    return plan.find_free(job)


def _later(due_s: float, now_s: float) -> float:
    return due_s if due_s >= now_s else now_s + (now_s - due_s)
