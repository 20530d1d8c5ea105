"""When devices become free by themselves: what waiting costs, as `castor-cost` sees it.

Rule: an estimate from the predicted ends of those that hold devices now, with no later arrivals and nobody
ahead in the queue. A tenant that is past its predicted end counts as needing `OVERRUN_RATIO` of what it has
had, or a job whose estimate was too short would make waiting look free for as long as it runs.
"""

from __future__ import annotations

from cotenant.controller.domain import LEAVING, RUNNING, HostState, Job, JobId, Plan, SchedulingClass, View
from cotenant.controller.policies.toolkit import Place, is_suitable

OVERRUN_RATIO = 0.1
NEVER = float("inf")


def leaves_in_s(view: View, job: Job) -> float:
    """Seconds until a job that holds devices, or has reserved some, has left them; infinite if its length is
    unknown."""
    left_s, is_running = job.known_left_s(view.now_s), job.phase is RUNNING
    if not is_running and job.phase in LEAVING:
        return job.expected_pause_s
    if left_s is None:
        return NEVER
    if not is_running:
        return left_s * job.slowdown + job.expected_load_s
    if left_s <= 0.0:
        left_s = OVERRUN_RATIO * (job.run_s + view.now_s - job.phase_since_s)
    return left_s * job.slowdown


class ExpectedFree:
    """For a plan as it was when this was made: the times at which the devices of each place become free."""

    def __init__(self, plan: Plan) -> None:
        self._view = view = plan.view
        hosts = {host_id for host_id, host in view.hosts.items() if host.state is HostState.OK}
        is_plain = not plan.actions and not view.claimants()
        known: dict[JobId, float] = {}
        at: dict[Place, list[tuple[float, int]]] = {}
        for device_id, device in view.devices.items():
            if device.host_id not in hosts or not device.healthy:
                continue
            free_s = 0.0
            here = view.tenants(device_id)
            for job_id in here if is_plain else (*here, *plan.staying(device_id)):
                leaves_s = known.get(job_id)
                if leaves_s is None:
                    leaves_s = known[job_id] = leaves_in_s(view, view.jobs[job_id])
                if leaves_s > free_s:
                    free_s = leaves_s
            at.setdefault((device.host_id, device.type), []).append((free_s, device.usable_mib))
        self._at = {place: sorted(devices) for place, devices in at.items()}
        self._waits: dict[SchedulingClass, float] = {}

    def wait_s(self, job: Job) -> float:
        """Seconds until the job's whole gang could have free devices, from now; infinite if never."""
        scheduling_class = self._view.scheduling_class(job)
        if scheduling_class not in self._waits:
            self._waits[scheduling_class] = min(
                (self._type_s(scheduling_class, type) for type in self._types(scheduling_class)),
                default=NEVER,
            )
        return self._waits[scheduling_class]

    def _types(self, scheduling_class: SchedulingClass) -> list[str]:
        return (
            [scheduling_class.gpu_type]
            if scheduling_class.gpu_type
            else sorted({type for _, type in self._at})
        )

    def _type_s(self, scheduling_class: SchedulingClass, type: str) -> float:
        """On one host if one could hold the gang, else over several; with `nodes`, that many equal parts."""
        here = [
            [free_s for free_s, usable_mib in devices if usable_mib >= scheduling_class.memory_mib]
            for place, devices in self._at.items()
            if place[1] == type and is_suitable(self._view, scheduling_class, place)
        ]
        if scheduling_class.nodes > 1:
            per_node = scheduling_class.gpus // scheduling_class.nodes
            parts = sorted(times[per_node - 1] for times in here if len(times) >= per_node)
            return parts[scheduling_class.nodes - 1] if len(parts) >= scheduling_class.nodes else NEVER
        if scheduling_class.nodes == 0 and scheduling_class.gpus > self._view.largest_host(
            scheduling_class, type
        ):
            everywhere = sorted(free_s for times in here for free_s in times)
            return (
                everywhere[scheduling_class.gpus - 1] if len(everywhere) >= scheduling_class.gpus else NEVER
            )
        return min(
            (times[scheduling_class.gpus - 1] for times in here if len(times) >= scheduling_class.gpus),
            default=NEVER,
        )
