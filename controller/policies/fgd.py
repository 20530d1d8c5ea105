"""fgd: fragmentation gradient descent (Weng et al., ATC '23), from GPUs to nodes as GFS section 4.1 adapts
it.

A pod goes to the node where it increases fragmentation least. Fragmentation of a node with f free GPUs is
the expectation, over the workload, of the free GPUs that a pod of g could not use: f if g > f, else f mod
g. The workload is the widths of pods seen so far, of both classes. Hp jobs preempt on the node where, in
the end, fragmentation is least; what its spot jobs lose does not count. First come, first served within a
class, past those that do not fit unless `backfill=none` keeps the order.

Departs from FGD in that pods of a gang that may be spread anyhow are placed as everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.controller.domain import (
    AnyEvent,
    Decision,
    DeviceId,
    HostId,
    Job,
    JobArrived,
    Plan,
    Reason,
    View,
    because,
)
from cotenant.controller.policies.entry import CLASSES, PolicyEntry
from cotenant.controller.policies.toolkit import (
    ClassParameters,
    FreedDevices,
    TwoClasses,
    find_pods,
    preemptible_jobs,
    reclaim,
)


class Fgd(TwoClasses):
    name = "fgd"
    places_by_itself = True

    def __init__(self, parameters: ClassParameters | None = None) -> None:
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

        return find_pods(plan, job, rank, tightest_first=False)

    def make_room(self, plan: Plan, job: Job) -> FreedDevices | None:
        def cost(host_id: HostId, victims: Sequence[Job], left_over: int) -> tuple[float, int]:
            return (self.fragmentation(left_over), len(victims))

        return reclaim(plan, job, preemptible_jobs(plan.view), cost, lambda here: here)

    def why(self, newcomer: Job, victim: Job) -> Reason:
        return because("evicted-fragments", newcomer.job_id)

    def observe(self, view: View, event: AnyEvent, decision: Decision) -> None:
        if isinstance(event, JobArrived):
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
    ClassParameters.parse,
    group=CLASSES,
    choose="gangs wait though enough devices are free, scattered over hosts",
)
