"""lyra: whole servers are lent to training and taken back at the least cost, as GFS section 4.1 compares
with it.

Source: Lyra (EuroSys '23) sections 3 and 4, hp jobs in the place of inference, spot jobs of training. A
server without hp jobs may be lent: spot jobs run on such servers only, shortest first, tightest server
first. Hp jobs go to servers with hp jobs, then to idle ones; when that is not enough servers are taken back
whole, those with the least preemption cost first: each spot job on a server costs that server's share of
the servers it is on. Whoever fits passes who does not, unless `backfill=none` keeps the order.

Departs from Lyra in that jobs are not elastic, and in that servers are lent and taken back as jobs come,
not at intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.controller.domain import DeviceId, HostId, Job, Plan, Reason, View, because
from cotenant.controller.policies.classic import by_remaining
from cotenant.controller.policies.entry import CLASSES, PolicyEntry
from cotenant.controller.policies.toolkit import (
    ClassParameters,
    FreedDevices,
    TwoClasses,
    find_pods,
    preemptible_jobs,
    reclaim,
)


class Lyra(TwoClasses):
    name = "lyra"
    places_by_itself = True

    def spot_key(self, job: Job) -> tuple[float, ...]:
        return by_remaining(job)

    def find(self, plan: Plan, job: Job) -> tuple[DeviceId, ...] | None:
        hp = job.spec.job_class == "hp"

        def rank(plan: Plan, host_id: HostId, type: str, free: int) -> tuple[int, ...] | None:
            hp_jobs = has_hp(plan.view, host_id)
            if hp:
                return (not hp_jobs, free)
            return None if hp_jobs else (free,)

        return find_pods(plan, job, rank, tightest_first=False)

    def make_room(self, plan: Plan, job: Job) -> FreedDevices | None:
        def cost(host_id: HostId, victims: Sequence[Job], left_over: int) -> tuple[float, int]:
            return (sum(1.0 / max(1, len(victim.hosts_left)) for victim in victims), left_over)

        return reclaim(plan, job, preemptible_jobs(plan.view), cost, None)

    def explain(self, view: View, job: Job) -> Reason:
        reason = super().explain(view, job)
        return because("none-lent", job.spec.gpus) if reason.code == "next-event" else reason

    def why(self, newcomer: Job, victim: Job) -> Reason:
        return because("evicted-server", newcomer.job_id)


def has_hp(view: View, host_id: HostId) -> bool:
    jobs = view.jobs
    return any(
        jobs[job_id].spec.job_class == "hp"
        for device in view.hosts[host_id].report.devices
        for job_id in view.tenants(device.device_id)
    )


LYRA: Final = PolicyEntry(
    "two classes: whole hosts are lent to spot jobs, the shortest first, and whoever fits passes",
    Lyra,
    ClassParameters.parse,
    group=CLASSES,
    choose="hp jobs are services that come and go by whole hosts (Lyra)",
)
