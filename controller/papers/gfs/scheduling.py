"""PTS, GFS's own scheduler (section 3.4.2): in which order (`Pts`), where a pod goes (Algorithm 1), and who
leaves for it (Algorithm 2).

By GPUs of a pod, then pods, then submission. Larger requests go first, as the paper leaves open: they are the
ones that find no place later. Ours (`queue=service`) has spot jobs by expected remaining time x GPUs. Whoever
fits is placed by Algorithm 1.

Algorithm 1 orders nodes by (Score1, Score2, Score3), one after the other: fewest idle GPUs; most GPUs of the
pod's own class; evictions, of which an hp pod prefers many and a spot pod few. Norm() is left out: it keeps
the order. A node whose Score3 is 0 for spot (`0.01 m^e >= 1`) takes no spot pod.

Algorithm 2, for hp pods: all spot jobs of a node leave, and in the order of descending waste each is spared
that need not leave. A node's cost is eq. 19; F and G are those before this decision, T is the time so far.

Departs from the paper: GPU models are looked at one after the other, never mixed in a gang; devices that a
victim frees on other nodes count for later pods; a gang is committed whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.controller.domain import NOTHING, Decision, DeviceId, HostId, Job, JobId, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.gfs.evictions import Evictions
from cotenant.controller.papers.gfs.parameters import GfsParameters
from cotenant.controller.planning import Plan, View, why_waiting
from cotenant.controller.policies import toolkit as kit
from cotenant.controller.policies.base import Stateless, is_quiet
from cotenant.controller.policies.ordered import service_key

SCORE3_SCALE: Final = 0.01


def class_gpus(view: View, host_id: HostId, type: str, *, hp: bool) -> int:
    """A host's devices with a tenant of a class."""
    jobs, count = view.jobs, 0
    for device in view.hosts[host_id].report.devices:
        if device.type == type:
            count += any(
                (jobs[job_id].spec.job_class == "hp") == hp
                for job_id in view.holdings.tenants(device.device_id)
            )
    return count


class Criteria:
    """Algorithm 1 at one moment."""

    def __init__(self, evictions: Evictions, parameters: GfsParameters) -> None:
        self._evictions, self._parameters = evictions, parameters

    def penalty(self, host_id: HostId, now_s: float) -> float:
        """0.01 m^e of eq. 16, at most 1."""
        parameters = self._parameters
        rate = self._evictions.host_rate(host_id, now_s, parameters.gamma, parameters.long_h)
        return float(min(1.0, SCORE3_SCALE * min(1e6, parameters.m ** min(rate, 100.0))))

    def find(self, plan: Plan, job: Job) -> tuple[DeviceId, ...] | None:
        """Devices of the whole gang, all of them free."""
        hp = job.spec.job_class == "hp"
        by_packing = self._parameters.scoring == "packing"

        def rank(plan: Plan, host_id: HostId, type: str, free: int) -> tuple[float, ...] | None:
            if by_packing:
                return ()
            penalty = self.penalty(host_id, plan.view.now_s)
            if not hp and penalty >= 1.0:
                return None
            return (-class_gpus(plan.view, host_id, type, hp=hp), -penalty if hp else penalty)

        return kit.find_pods(plan, job, rank, tightest_first=True)


class LeastCost:
    """Algorithm 2 at one moment; at random for the ablation."""

    def __init__(
        self, evictions: Evictions, checkpoints_s: Mapping[JobId, float], parameters: GfsParameters
    ) -> None:
        self._evictions, self._checkpoints_s, self._parameters = evictions, checkpoints_s, parameters

    def waste(self, job: Job, now_s: float) -> float:
        """The work wasted if a job is preempted (eq. 17): GPU-seconds since its last checkpoint; a job that
        loads has done nothing yet."""
        since_s = max(job.phase_since_s, self._checkpoints_s.get(job.job_id, 0.0))
        return job.spec.gpus * (now_s - since_s)

    def find(self, plan: Plan, job: Job) -> kit.FreedDevices | None:
        view, now_s = plan.view, plan.view.now_s
        if self._parameters.preemption == "random":
            return kit.reclaim(
                plan,
                job,
                kit.preemptible_jobs(view),
                lambda host_id, victims, left: _shuffle_key(job, host_id),
                lambda here: sorted(here, key=lambda victim: _shuffle_key(job, victim.job_id)),
            )
        total_s = max(1.0, now_s) * max(1, len(view.devices))
        finished, evicted, beta = self._evictions.finished, self._evictions.evicted, self._parameters.beta

        def cost(host_id: HostId, victims: Sequence[Job], left_over: int) -> tuple[float, int]:
            """The cost of preempting these victims (eq. 19); before the first run has ended, the first term
            is 1 for any number of victims."""
            many = len(victims)
            if not many:
                return (0.0, left_over)
            rate = (evicted + many) / (finished + evicted + many)
            return (rate + beta * sum(self.waste(v, now_s) for v in victims) / total_s, many)

        def sort_by_waste(here: list[Job]) -> list[Job]:
            return sorted(here, key=lambda victim: (-self.waste(victim, now_s), victim.number))

        return kit.reclaim(plan, job, kit.preemptible_jobs(view), cost, sort_by_waste)

    def take(self, plan: Plan, job: Job) -> bool:
        """Preempts, and reserves what the victims leave; False: there are no such devices."""
        found = self.find(plan, job)
        if found is None:
            return False
        now_s = plan.view.now_s
        wastes = {victim.job_id: self.waste(victim, now_s) for victim in found.victims}
        evicts = because("evicts", len(wastes), ", ".join(wastes), sum(wastes.values()))
        why = {job_id: because("evicted-for-hp", job.job_id, waste) for job_id, waste in wastes.items()}
        kit.take_room(plan, job, found, "gfs", kit.Why(evicts, why))
        return True


def _shuffle_key(job: Job, name: str) -> int:
    """Shuffles the same way in every run: decisions are replayed."""
    return zlib.crc32(f"{job.number}/{job.attempt.number}/{name}".encode())


class Pts(Stateless):
    def __init__(self, name: str, criteria: Criteria, parameters: GfsParameters) -> None:
        self.name, self._criteria, self._parameters = name, criteria, parameters

    def queue_key(self, job: Job) -> tuple[float, ...]:
        if self._parameters.queue == "service" and job.spec.job_class == "spot":
            return service_key(job)
        pods = max(1, job.spec.nodes)
        return (-job.spec.gpus / pods, -pods)

    def decide(self, view: View, event: ev.AnyEvent, budgets: Mapping[str, int] | None = None) -> Decision:
        """Decides within `budgets`: devices by type that may be given out; None: all that are free. No budget
        limits an aged job."""
        if not view.queue or not view.free.everywhere or is_quiet(view, event):
            return NOTHING
        plan, candidates = Plan(view), kit.Candidates(view)
        left = None if budgets is None else dict(budgets)
        while (job := candidates.next()) is not None and plan.any_free():
            if left is not None and not job.aged and job.spec.gpus > max(left.values(), default=0):
                continue
            devices = self._criteria.find(plan, job)
            if devices is None:
                continue
            type = view.devices[devices[0]].type
            if left is not None:
                if not job.aged and job.spec.gpus > left.get(type, 0):
                    continue
                left[type] = left.get(type, 0) - len(devices)
            plan.place(job, devices, because("free-devices-in-order", self.name, len(devices)))
            candidates.again(job)
            if left is not None and max(left.values(), default=0) <= 0 and not job.aged:
                break
        return plan.decision()

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        return because("hosts-rest") if reason.code == "next-event" else reason
