"""PTS, the order of GFS's own scheduler (section 3.4.2): by GPUs of a pod, then pods, then submission.

Larger requests go first, as the paper leaves open: they are the ones that find no place later. Ours
(`queue=service`) has spot jobs by expected remaining time x GPUs. Whoever fits is placed by Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.controller.domain import NOTHING, AnyEvent, Decision, Job, Plan, Reason, View, because
from cotenant.controller.policies.base import Candidates, Stateless, is_quiet, why_waiting
from cotenant.controller.policies.gfs.parameters import GfsParameters
from cotenant.controller.policies.gfs.scheduling import Criteria
from cotenant.controller.policies.service import by_service


class Pts(Stateless):
    def __init__(self, name: str, criteria: Criteria, parameters: GfsParameters) -> None:
        self.name, self._criteria, self._parameters = name, criteria, parameters

    def queue_key(self, job: Job) -> tuple[float, ...]:
        if self._parameters.queue == "service" and job.spec.job_class == "spot":
            return by_service(job)
        pods = max(1, job.spec.nodes)
        return (-job.spec.gpus / pods, -pods)

    def decide(self, view: View, event: AnyEvent) -> Decision:
        return self.decide_within(view, event, None)

    def decide_within(self, view: View, event: AnyEvent, budgets: Mapping[str, int] | None) -> Decision:
        """`budgets`: devices by type that may be given out; None: all that are free. No budget limits an aged
        job."""
        if not view.queued_count() or not view.free.everywhere or is_quiet(view, event):
            return NOTHING
        plan, candidates = Plan(view), Candidates(view)
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
