"""From the controller's state to what a decision about one queue needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from cotenant.controller.domain import (
    LEAVING,
    Allocation,
    AllocationQueue,
    Device,
    Host,
    HostId,
    JobId,
    Phase,
    SeenShape,
)
from cotenant.controller.planning import View
from cotenant.controller.slurm.alloc.deciding import (
    LOOKED_AT_MAX,
    SOON_S,
    HostSpace,
    Situation,
    WaitingJob,
)

NOT_RUNNABLE = frozenset((Phase.BLOCKED, Phase.HELD))


def situation(
    view: View,
    queue: AllocationQueue,
    allocations: tuple[Allocation, ...],
    now_s: float,
    idle_since_s: Mapping[HostId, float],
    problem: str,
) -> Situation:
    spaces = tuple(
        space for host in view.hosts.values() if host.takes_work for space in _spaces(view, host, now_s)
    )
    waiting = islice(view.queue.jobs_in_order(), LOOKED_AT_MAX)
    return Situation(
        now_s=now_s,
        queue=queue,
        allocations=allocations,
        waiting=tuple(WaitingJob(job.job_id, view.queue.class_of(job)) for job in waiting),
        not_runnable=sum(job.phase in NOT_RUNNABLE for job in view.jobs.values()),
        spaces=spaces,
        widest=max((len(host.report.devices) for host in view.hosts.values() if host.takes_work), default=0),
        idle_s={host_id: now_s - since_s for host_id, since_s in idle_since_s.items()},
        cleared=frozenset(list_cleared(view)),
        problem=problem,
    )


def idle_now(view: View) -> set[HostId]:
    """Hosts that take work and have no job."""
    return {host.host_id for host in view.hosts.values() if host.takes_work and not _has_jobs(view, host)}


def list_cleared(view: View) -> Iterator[HostId]:
    """Hosts that are here, are given back, and have no job any more."""
    for host in view.hosts.values():
        if host.drained_by and not host.lost and not _has_jobs(view, host):
            yield host.host_id


def _has_jobs(view: View, host: Host) -> bool:
    return any(
        view.holdings.tenants(device.device_id) or view.holdings.claimed_by(device.device_id) is not None
        for device in host.report.devices
    )


def seen_shape(host: Host) -> SeenShape:
    usable = [device for device in host.report.devices if device.healthy]
    return SeenShape(
        devices=len(usable),
        type=usable[0].type if usable else "",
        memory_mib=min((device.usable_mib for device in usable), default=0),
        features=host.report.features,
        domain=host.checkpoint_domain,
    )


def _spaces(view: View, host: Host, now_s: float) -> Iterator[HostSpace]:
    for type in sorted({device.type for device in host.report.devices}):
        devices = [each for each in host.report.devices if each.type == type and each.healthy]
        free = [each for each in devices if _is_free(view, each)]
        soon = [each for each in devices if each not in free and _is_soon_free(view, each, now_s)]
        if devices:
            yield HostSpace(
                host_id=host.host_id,
                type=type,
                free=len(free),
                soon=len(soon),
                memory_mib=min(each.usable_mib for each in devices),
                features=host.report.features,
                domain=host.checkpoint_domain,
                stays_s=host.left_s,
            )


def _is_free(view: View, device: Device) -> bool:
    return not view.holdings.tenants(device.device_id) and view.holdings.claimed_by(device.device_id) is None


def _is_soon_free(view: View, device: Device, now_s: float) -> bool:
    if view.holdings.claimed_by(device.device_id) is not None:
        return False
    return all(_leaves_soon(view, job_id, now_s) for job_id in view.holdings.tenants(device.device_id))


def _leaves_soon(view: View, job_id: JobId, now_s: float) -> bool:
    job = view.jobs[job_id]
    return job.phase in LEAVING or job.estimate.end_s <= now_s + SOON_S
