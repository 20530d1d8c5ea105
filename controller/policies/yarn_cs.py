"""yarn-cs: YARN's capacity scheduler as GFS section 4.1 compares with it: FCFS, best fit, preemption.

Source: Vavilapalli et al. (SoCC '13) and the capacity scheduler's preemption: a queue that asks for its
guaranteed share takes it back from the other, whose newest containers go first. Two queues: all capacity is
guaranteed to hp. Each queue is first come, first served; a request that cannot be met now is passed over,
as YARN passes over an application whose containers fit on no node that reports. With `backfill=none` it is
not, which is how GFS seems to have run it: its Table 5 has spot jobs wait 3,110 s at a load of .77.

Departs from YARN in that a gang is taken back for whole, at once (YARN waits some seconds for containers to
be given back), and in that devices which leaving jobs leave over are used before another job is preempted.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cotenant.controller.domain import Job, Plan
from cotenant.controller.policies.base import Parameters
from cotenant.controller.policies.toolkit import FreedDevices, TwoClasses, find_room, preemptible_jobs


class YarnParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named options of yarn-cs."""

    backfill: Literal["none", "any"] = "any"
    """Who may start ahead of a job of its class that does not fit: nobody, or whoever fits."""

    @classmethod
    def parse(cls, parameters: Parameters) -> YarnParameters:
        """Raises ValueError for a wrong name, type or value."""
        return msgspec.convert(parameters, cls)

    def as_parameters(self) -> Parameters:
        return {"backfill": self.backfill}


class YarnCs(TwoClasses):
    name = "yarn-cs"

    def __init__(self, parameters: YarnParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else YarnParameters()
        self.keeps_order = self.parameters.backfill == "none"

    def make_room(self, plan: Plan, job: Job) -> FreedDevices | None:
        spot = [each for each in preemptible_jobs(plan.view) if not plan.is_leaving(each.job_id)]
        if plan.free_everywhere + sum(each.spec.gpus for each in spot) < job.spec.gpus:
            return None
        spot.sort(key=lambda each: (-each.phase_since_s, -each.number))
        return find_room(plan, job, iter(spot))
