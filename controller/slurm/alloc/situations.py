"""From the controller's state to what a decision about one queue needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from cotenant.controller import domain
from cotenant.controller.planning import View
from cotenant.controller.slurm.alloc import deciding

NOT_RUNNABLE = frozenset((domain.Phase.BLOCKED, domain.Phase.HELD))


def situation(
    view: View,
    queue: domain.AllocationQueue,
    allocations: tuple[domain.Allocation, ...],
    now_s: float,
    idle_since_s: Mapping[domain.HostId, float],
    problem: str,
) -> deciding.Situation:
    spaces = tuple(
        space for host in view.hosts.values() if host.takes_work for space in _spaces(view, host, now_s)
    )
    waiting = islice(view.queue.jobs_in_order(), deciding.LOOKED_AT_MAX)
    return deciding.Situation(
        now_s=now_s,
        queue=queue,
        allocations=allocations,
        waiting=tuple(deciding.WaitingJob(job.job_id, view.queue.class_of(job)) for job in waiting),
        not_runnable=sum(job.phase in NOT_RUNNABLE for job in view.jobs.values()),
        spaces=spaces,
        widest=max((len(host.report.devices) for host in view.hosts.values() if host.takes_work), default=0),
        idle_s={host_id: now_s - since_s for host_id, since_s in idle_since_s.items()},
        cleared=frozenset(
            host.host_id
            for host in view.hosts.values()
            if host.drained_by and not host.lost and not _has_jobs(view, host)
        ),
        problem=problem,
    )


def idle_now(view: View) -> set[domain.HostId]:
    """Hosts that take work and have no job."""
    return {host.host_id for host in view.hosts.values() if host.takes_work and not _has_jobs(view, host)}


def _has_jobs(view: View, host: domain.Host) -> bool:
    return not all(_is_free(view, device) for device in host.report.devices)


def seen_shape(host: domain.Host) -> domain.SeenShape:
    usable = [device for device in host.report.devices if device.healthy]
    return domain.SeenShape(
        devices=len(usable),
        type=usable[0].type if usable else "",
        memory_mib=min((device.usable_mib for device in usable), default=0),
        features=host.report.features,
        domain=host.checkpoint_domain,
    )


def _spaces(view: View, host: domain.Host, now_s: float) -> Iterator[deciding.HostSpace]:
    for type in sorted({device.type for device in host.report.devices}):
        devices = [each for each in host.report.devices if each.type == type and each.healthy]
        free = [each for each in devices if _is_free(view, each)]
        soon = [each for each in devices if each not in free and _is_soon_free(view, each, now_s)]
        if devices:
            yield deciding.HostSpace(
                host_id=host.host_id,
                type=type,
                free=len(free),
                soon=len(soon),
                memory_mib=min(each.usable_mib for each in devices),
                features=host.report.features,
                domain=host.checkpoint_domain,
                stays_s=host.left_s,
            )


def _is_free(view: View, device: domain.Device) -> bool:
    return not view.holdings.tenants(device.device_id) and view.holdings.claimed_by(device.device_id) is None


def _is_soon_free(view: View, device: domain.Device, now_s: float) -> bool:
    jobs = (view.jobs[job_id] for job_id in view.holdings.tenants(device.device_id))
    return view.holdings.claimed_by(device.device_id) is None and all(
        job.phase in domain.LEAVING or job.estimate.end_s <= now_s + deciding.SOON_S for job in jobs
    )
