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

from typing import Final

from cotenant.controller.domain import Job, Plan
from cotenant.controller.policies.entry import CLASSES, PolicyEntry
from cotenant.controller.policies.toolkit import (
    ClassParameters,
    FreedDevices,
    TwoClasses,
    find_room,
    preemptible_jobs,
)


class YarnCs(TwoClasses):
    name = "yarn-cs"

    def make_room(self, plan: Plan, job: Job) -> FreedDevices | None:
        spot = [each for each in preemptible_jobs(plan.view) if not plan.is_leaving(each.job_id)]
        if plan.free_everywhere + sum(each.spec.gpus for each in spot) < job.spec.gpus:
            return None
        spot.sort(key=lambda each: (-each.phase_since_s, -each.number))
        return find_room(plan, job, iter(spot))


YARN_CS: Final = PolicyEntry(
    "two classes: hp first, preempts the newest spot jobs; by arrival, and whoever fits passes",
    YarnCs,
    ClassParameters.parse,
    group=CLASSES,
    choose="the simplest rule for two classes is to be compared with",
)
