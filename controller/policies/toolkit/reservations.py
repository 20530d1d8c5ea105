"""Where and when a waiting job would start if every job ended as predicted and nobody else started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from cotenant.controller.domain import LEAVING, LOADING, DeviceId, Job, Place
from cotenant.controller.planning import HostType, Plan, View

NEVER_S: Final = float("inf")


class Reservation(NamedTuple):
    """Where and when the head starts if every job ends as predicted."""

    start_s: float
    devices: tuple[DeviceId, ...]


def reserve(plan: Plan, head: Job) -> Reservation | None:
    """Finds when and where the head can start; None where that cannot be foreseen."""
    view = plan.view
    trial = plan.fork()
    for end_s, job, devices in _ends(plan):
        if end_s == NEVER_S:
            return None
        if devices:
            trial.suppose_gone((job.job_id,))
        else:
            trial.suppose_left(job)
        for (host_id, type), left in _group_by_host(view, devices).items():
            trial.suppose_free(host_id, type, left)
        if trial.free_everywhere >= head.spec.gpus:
            found = trial.find_free(head)
            if found is not None:
                return Reservation(end_s, found)
    return None


def _ends(plan: Plan) -> list[tuple[float, Job, tuple[DeviceId, ...]]]:
    """Returns when jobs leave, the first to leave first; with their devices, those that this plan starts."""
    view, now_s = plan.view, plan.view.now_s
    found: list[tuple[float, int, Job, tuple[DeviceId, ...]]] = [
        (_end_s(job, now_s), job.number, job, ()) for job in view.running.jobs_by_end()
    ]
    for action in plan.actions:
        if isinstance(action, Place):
            job = view.jobs[action.job_id]
            found.append((end_if_started(job, now_s), job.number, job, action.devices))
    found.sort(key=lambda each: each[:2])
    return [(end_s, job, devices) for end_s, _, job, devices in found]


def _end_s(job: Job, now_s: float) -> float:
    """The predicted end of a job; now, where that is over."""
    if job.phase is LOADING:
        left_s = (
            NEVER_S if job.estimate.remaining_s is None else job.estimate.remaining_s * job.estimate.slowdown
        )
        return max(job.phase_since_s + job.estimate.load_s, now_s) + left_s
    if job.phase in LEAVING:
        return max(job.phase_since_s + job.estimate.pause_s, now_s)
    return max(job.estimate.end_s, now_s)


def end_if_started(job: Job, now_s: float) -> float:
    return (
        NEVER_S
        if job.estimate.remaining_s is None
        else now_s + job.estimate.load_s + job.estimate.remaining_s
    )


def _group_by_host(view: View, devices: Iterable[DeviceId]) -> dict[HostType, list[DeviceId]]:
    found: dict[HostType, list[DeviceId]] = defaultdict(list)
    for device_id in devices:
        device = view.devices[device_id]
        found[device.host_id, device.type].append(device_id)
    return found
