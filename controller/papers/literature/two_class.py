"""yarn-cs, fgd, lyra, chronus: schedulers of two classes, as GFS section 4.1 compares with them. Within a
class all but `lyra` go by arrival, and whoever fits passes who does not, unless `backfill=none` keeps the
order.

`yarn-cs`: YARN's capacity scheduler: FCFS, best fit, preemption. Source: Vavilapalli et al. (SoCC '13) and
the capacity scheduler's preemption: a queue that asks for its guaranteed share takes it back from the other,
whose newest containers go first. Two queues: all capacity is guaranteed to hp. A request that cannot be met
now is passed over, as YARN passes over an application whose containers fit on no node that reports. With
`backfill=none` it is not, which is how GFS seems to have run it: its Table 5 has spot jobs wait 3,110 s at a
load of .77. Departs from YARN in that a gang is taken back for whole, at once (YARN waits some seconds for
containers to be given back), and in that devices which leaving jobs leave over are used before another job is
preempted.

`fgd`: fragmentation gradient descent (Weng et al., ATC '23), from GPUs to nodes as GFS adapts it. A pod goes
to the node where it increases fragmentation least. Fragmentation of a node with f free GPUs is the
expectation, over the workload, of the free GPUs that a pod of g could not use: f if g > f, else f mod g. The
workload is the widths of pods seen so far, of both classes. Hp jobs preempt on the node where, in the end,
fragmentation is least; what its spot jobs lose does not count. Departs from FGD in that pods of a gang that
may be spread anyhow are placed as everywhere else.

`lyra`: whole servers are lent to training and taken back at the least cost. Source: Lyra (EuroSys '23)
sections 3 and 4, hp jobs in the place of inference, spot jobs of training. A server without hp jobs may be
lent: spot jobs run on such servers only, shortest first, tightest server first. Hp jobs go to servers with hp
jobs, then to idle ones; when that is not enough servers are taken back whole, those with the least preemption
cost first: each spot job on a server costs that server's share of the servers it is on. Departs from Lyra in
that jobs are not elastic, and in that servers are lent and taken back as jobs come, not at intervals.

`chronus`: time in leases, 20 minutes for hp jobs, 5 for spot jobs. Source: Chronus (SoCC '21) section 3:
the holder of a lease keeps its devices to the end of it; then the policy decides anew who gets the next
one. Hp jobs are its SLO jobs, spot jobs its best-effort ones: a spot job whose lease is over leaves if an
hp job waits that its devices help to place. An hp job gets its next lease always. Departs from Chronus in
that no deadlines are known, so that SLO jobs are taken in the order of arrival where Chronus solves a MILP;
in that what is free is given at once, not at the next lease; and in that hp jobs are not paused at the ends
of their leases, since class hp never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from cotenant.controller.domain import Decision, DeviceId, HostId, Job, Reason, Wake, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View
from cotenant.controller.policies import toolkit as kit
from cotenant.controller.policies.base import PolicyParameters, Traits, Within, is_quiet
from cotenant.controller.policies.entries import COMPARED, PolicyEntry
from cotenant.controller.policies.ordered import remaining_key


class YarnCs(kit.TwoClasses):
    name = "yarn-cs"

    def make_room(self, plan: Plan, job: Job) -> kit.FreedDevices | None:
        spot = [each for each in kit.preemptible_jobs(plan.view) if not plan.is_leaving(each.job_id)]
        if plan.free_everywhere + sum(each.spec.gpus for each in spot) < job.spec.gpus:
            return None
        spot.sort(key=lambda each: (-each.phase_since_s, -each.number))
        return kit.find_room(plan, job, iter(spot))


YARN_CS: Final = PolicyEntry(
    "two classes: hp first, preempts the newest spot jobs; by arrival, and whoever fits passes",
    YarnCs,
    kit.ClassParameters.parse,
    group=COMPARED,
    choose="the simplest rule for two classes is to be compared with",
)


class Fgd(kit.TwoClasses):
    name = "fgd"
    traits = Traits(preempts=True, has_classes=True, places_by_itself=True)

    def __init__(self, parameters: kit.ClassParameters) -> None:
        super().__init__(parameters)
        self._pods: dict[int, int] = {}
        """Pods seen, by GPUs."""

    def fragmentation(self, free: int) -> float:
        """Fragmentation in GPUs, times the number of pods seen."""
        return float(
            sum(count * (free if gpus > free else free % gpus) for gpus, count in self._pods.items())
        )

    def find(self, plan: Plan, job: Job) -> tuple[DeviceId, ...] | None:
        gpus = pod_of(job)

        def rank(plan: Plan, host_id: HostId, type: str, free: int) -> tuple[float, int]:
            return (self.fragmentation(free - gpus) - self.fragmentation(free), free)

        return kit.find_pods(plan, job, rank, tightest_first=False)

    def make_room(self, plan: Plan, job: Job) -> kit.FreedDevices | None:
        def cost(host_id: HostId, victims: Sequence[Job], left_over: int) -> tuple[float, int]:
            return (self.fragmentation(left_over), len(victims))

        return kit.reclaim(plan, job, kit.preemptible_jobs(plan.view), cost, lambda here: here)

    def why(self, newcomer: Job, victim: Job) -> Reason:
        return because("evicted-fragments", newcomer.job_id)

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        if isinstance(event, ev.JobArrived):
            gpus = max(1, event.spec.gpus // max(1, event.spec.nodes))
            self._pods[gpus] = self._pods.get(gpus, 0) + 1

    def save(self) -> bytes:
        return msgspec.msgpack.encode(sorted(self._pods.items()))

    def load(self, state: bytes) -> None:
        self._pods = dict(msgspec.msgpack.decode(state, type=list[tuple[int, int]])) if state else {}


def pod_of(job: Job) -> int:
    return max(1, job.spec.gpus // max(1, job.spec.nodes))


FGD: Final = PolicyEntry(
    "two classes; leaves the least splinters of free devices; by arrival, and whoever fits passes (FGD)",
    Fgd,
    kit.ClassParameters.parse,
    group=COMPARED,
    choose="gangs wait though enough devices are free, scattered over hosts",
)


class Lyra(kit.TwoClasses):
    name = "lyra"
    traits = Traits(preempts=True, has_classes=True, places_by_itself=True)

    def spot_key(self, job: Job) -> tuple[float, ...]:
        return remaining_key(job)

    def find(self, plan: Plan, job: Job) -> tuple[DeviceId, ...] | None:
        hp = job.spec.job_class == "hp"

        def rank(plan: Plan, host_id: HostId, type: str, free: int) -> tuple[int, ...] | None:
            hp_jobs = has_hp(plan.view, host_id)
            if hp:
                return (not hp_jobs, free)
            return None if hp_jobs else (free,)

        return kit.find_pods(plan, job, rank, tightest_first=False)

    def make_room(self, plan: Plan, job: Job) -> kit.FreedDevices | None:
        def cost(host_id: HostId, victims: Sequence[Job], left_over: int) -> tuple[float, int]:
            return (sum(1.0 / max(1, len(victim.attempt.hosts_left)) for victim in victims), left_over)

        return kit.reclaim(plan, job, kit.preemptible_jobs(plan.view), cost, None)

    def explain(self, view: View, job: Job) -> Reason:
        reason = super().explain(view, job)
        return because("none-lent", job.spec.gpus) if reason.code == "next-event" else reason

    def holds_back(self, view: View, job: Job) -> bool:
        """Free devices on hosts with hp jobs are not for spot jobs, whatever their priority."""
        return self.explain(view, job).code == "none-lent"

    def why(self, newcomer: Job, victim: Job) -> Reason:
        return because("evicted-server", newcomer.job_id)


def has_hp(view: View, host_id: HostId) -> bool:
    jobs = view.jobs
    return any(
        jobs[job_id].spec.job_class == "hp"
        for device in view.hosts[host_id].report.devices
        for job_id in view.holdings.tenants(device.device_id)
    )


LYRA: Final = PolicyEntry(
    "two classes: whole hosts are lent to spot jobs, the shortest first, and whoever fits passes",
    Lyra,
    kit.ClassParameters.parse,
    group=COMPARED,
    choose="hp jobs are services that come and go by whole hosts (Lyra)",
)


NEARLY_S = 1e-6
"""Wake-up times may be rounded by this much."""


class ChronusParameters(PolicyParameters, frozen=True, kw_only=True):
    spot_lease_s: Annotated[float, Within(10.0, 1e6)] = 300.0
    """Of hp jobs (20 minutes) every lease is renewed, so its length changes nothing."""


class Chronus(kit.RemembersWakeUp, kit.TwoClasses):
    name = "chronus"

    def __init__(self, parameters: ChronusParameters) -> None:
        kit.RemembersWakeUp.__init__(self)
        kit.TwoClasses.__init__(self, kit.ClassParameters())
        self.parameters = parameters

    def make_room(self, plan: Plan, job: Job) -> kit.FreedDevices | None:
        over = [
            each
            for each in kit.preemptible_jobs(plan.view)
            if not plan.is_leaving(each.job_id) and self._left_s(each, plan.view.now_s) <= NEARLY_S
        ]
        over.sort(key=lambda each: (each.phase_since_s, each.number))
        return kit.find_room(plan, job, iter(over))

    def _left_s(self, job: Job, now_s: float) -> float:
        """What is left of the job's lease; the first one began with its first step; 0 at the end of each."""
        lease_s = self.parameters.spot_lease_s
        passed_s = now_s - job.phase_since_s
        if passed_s < lease_s - NEARLY_S:
            return lease_s - passed_s
        into_s = passed_s % lease_s
        return 0.0 if min(into_s, lease_s - into_s) <= NEARLY_S * max(1.0, passed_s) else lease_s - into_s

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        decision = super().decide(view, event)
        placed = len(decision.actions)
        if is_quiet(view, event) or not view.hp.waiting or self._wake_up.is_set(view.now_s):
            return decision
        ends = [
            left_s
            for each in kit.preemptible_jobs(view)
            if (left_s := self._left_s(each, view.now_s)) > NEARLY_S
        ]
        if not ends or placed >= len(view.queue):
            return decision
        wake = Wake(at_s=view.now_s + min(ends), reason=because("lease-end"))
        return Decision(actions=(*decision.actions, wake))

    def why(self, newcomer: Job, victim: Job) -> Reason:
        return because("lease-over", newcomer.job_id, self.parameters.spot_lease_s)


CHRONUS: Final = PolicyEntry(
    "two classes: spot jobs give way when a lease is over; by arrival, and whoever fits passes",
    Chronus,
    ChronusParameters.parse,
    group=COMPARED,
    choose="spot jobs must be sure of five minutes at a time (Chronus)",
)
