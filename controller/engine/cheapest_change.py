"""The smallest change of what a waiting job asks for with which it would fit on what is free now.

Rule: nobody leaves and nobody is passed for it: whether the policy would let the job go before others is the
policy's to say. Options are tried from those that cost the job nothing to fewer devices, one at a time, and
only those that `cotenant set` takes now. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from cotenant.controller.domain import Job, JobSpec, Phase, Reason, asks_hosts, because
from cotenant.controller.planning import Plan, View

Value = str | int
Changes = Mapping[str, Value]
"""Options of `cotenant set`, and their values; `-` takes one back."""
NONE: Final = "-"
FEWER_MAX: Final = 64
"""Numbers of devices that are tried."""


def cheapest_change(view: View, job: Job) -> Reason | None:
    """The cheapest change of an option with which a job fits. None: no single option helps, or the job fits
    as it is."""
    if job.phase is not Phase.QUEUED:
        return None
    plan = Plan(view)
    if not view.free.everywhere or plan.find_free(job) is not None:
        return None
    for changes, spec in possible_changes(plan, job):
        if plan.find_free(msgspec.structs.replace(job, spec=spec)) is not None:
            words = " ".join(f"{key}={value}" for key, value in changes.items())
            return because("would-fit", job.job_id, words)
    return None


def possible_changes(plan: Plan, job: Job) -> Iterator[tuple[Changes, JobSpec]]:
    """Yields the possible changes of a job, the cheapest first."""
    spec, has_save = job.spec, job.durable_step > 0
    if spec.gpu_type and not has_save:
        yield {"gpu_type": NONE}, msgspec.structs.replace(spec, gpu_type="")
    if spec.nodes and not has_save:
        yield {"nodes": NONE}, msgspec.structs.replace(spec, nodes=0)
    yield from _less_memory(plan, spec)
    yield from _less_of_hosts(plan, spec)
    if not has_save and spec.gpus_min == spec.gpus_max:
        most = min(spec.gpus_min - 1, plan.free_everywhere)
        for gpus in range(most, max(spec.nodes - 1, most - FEWER_MAX, 0), -1):
            if gpus % max(1, spec.nodes) == 0:
                yield {"gpus": gpus}, msgspec.structs.replace(spec, gpus_min=gpus, gpus_max=gpus)


def _less_memory(plan: Plan, spec: JobSpec) -> Iterator[tuple[Changes, JobSpec]]:
    """Yields changes to less memory: as much per device as devices have that are smaller than the job asks
    for."""
    if spec.memory_mib is None:
        return
    sizes = {device.usable_mib for device in plan.view.devices.values() if device.healthy}
    for size in sorted((size for size in sizes if 0 < size < spec.memory_mib), reverse=True):
        yield {"mem": f"{size}M"}, msgspec.structs.replace(spec, memory_mib=size)


def _less_of_hosts(plan: Plan, spec: JobSpec) -> Iterator[tuple[Changes, JobSpec]]:
    """What is left on a host with free devices, where that is less than the job asks for of each."""
    found: dict[tuple[int, int], Changes] = {}
    for host_id in plan.view.hosts if asks_hosts(spec) else ():
        if not plan.free_on(host_id):
            continue
        room = plan.room_on(host_id)
        memory_mib = spec.host_memory_mib if room.memory_mib is None else room.memory_mib
        left = min(spec.cpus, max(0, room.cpus)), min(spec.host_memory_mib, max(0, memory_mib))
        changes: dict[str, Value] = {}
        if left[0] < spec.cpus:
            changes["cpus"] = left[0] or NONE
        if left[1] < spec.host_memory_mib:
            changes["host_mem"] = f"{left[1]}M" if left[1] else NONE
        if changes:
            found[left] = changes
    for cpus, memory_mib in sorted(found, reverse=True):
        yield found[cpus, memory_mib], msgspec.structs.replace(spec, cpus=cpus, host_memory_mib=memory_mib)
