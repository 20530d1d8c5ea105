"""Shortest remaining time first over the whole queue: `srtf-full` at each event, `interval-N` every N
seconds.

Source: Lazer section 3.1, where SRTF runs on job arrival or completion, and Pollux, Muri and Optimus are
SRTF run every 60, 360 and 600 s. The schedule is the one order over jobs that wait and jobs that run: a job
that loads may be preempted (its load is then for nothing: a futile preemption), a reservation replaced.

Departs from the paper in that a job that saves its state is left to do so, and in that devices that it leaves
over are taken before anybody else is preempted.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from cotenant.controller.domain import NOTHING, Decision, Job, Reason, Wake, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View
from cotenant.controller.policies import toolkit as kit
from cotenant.controller.policies.base import PolicyParameters, Traits, Within, is_quiet
from cotenant.controller.policies.entries import COMPARED, PolicyEntry
from cotenant.controller.policies.ordered import Ordered, Preempting, remaining_key


class RemainingTime(kit.QueueOrder):
    """The order of SRTF."""

    def __init__(self, name: str) -> None:
        self.name = name

    def list_victims(self, plan: Plan, job: Job) -> Iterator[Job]:
        """Jobs with more remaining time, most first."""
        mine_s, now_s = job.estimate.remaining_s, plan.view.now_s
        longer = kit.worth_preempting(plan, job)
        if mine_s is None:
            return longer
        waiting = [
            r
            for r in kit.list_reserved(plan)
            if (r.estimate.remaining_s or 0.0) > mine_s
            and not r.aged
            and r.spec.priority <= job.spec.priority
        ]
        if not waiting:
            return longer
        waiting.sort(key=lambda r: (-(r.estimate.remaining_s or 0.0), r.number))
        return heapq.merge(longer, waiting, key=lambda j: (-(j.remaining_now_s(now_s) or 0.0), j.number))

    def why(self, view: View, job: Job, victims: Sequence[Job]) -> kit.Why:
        return kit.why_shorter(view, job, victims)

    def why_last(self, view: View, job: Job) -> Reason | None:
        return kit.why_shortest(view, job, view.running.jobs_by_end())

    def is_anybody_behind(self, plan: Plan, job: Job) -> bool:
        """Among jobs that run: the reason compares with these."""
        return next(kit.worth_preempting(plan, job), None) is not None


class IntervalParameters(PolicyParameters, frozen=True, kw_only=True):
    """How often the queue is looked at."""

    interval_s: Annotated[float, Within(1.0, 1e6)] = 360.0
    """Seconds from one look to the next (Lazer section 3.1: 60, 360 and 600)."""


class IntervalPolicy(kit.RemembersWakeUp):
    """Shortest remaining time first among all jobs, at multiples of `interval_s` and at no other time.

    After a pass nothing more can be done until something happens: jobs that run only come nearer to their
    end. So only an event that finds jobs waiting asks for the next pass, and idle time costs nothing. It
    remembers only the wake-up that it has asked for.
    """

    traits = Traits(preempts=True, orders_by_size=True)
    queue_key = staticmethod(remaining_key)

    def __init__(self, name: str, parameters: IntervalParameters) -> None:
        super().__init__()
        self.name = name
        self.parameters = parameters
        self._order = RemainingTime(name)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.queue or self._wake_up.is_set(view.now_s):
            return NOTHING
        if self._wake_up.is_due(view.now_s):
            plan = Plan(view)
            kit.rearrange(plan, self._order, kit.Candidates(view))
            return plan.decision()
        if is_quiet(view, event):
            return NOTHING
        return Decision(actions=(Wake(at_s=self._next_s(view.now_s), reason=self._reason()),))

    def _next_s(self, now_s: float) -> float:
        """The first multiple after now."""
        step_s = self.parameters.interval_s
        at_s = (math.floor(now_s / step_s) + 1) * step_s
        return at_s if at_s > now_s else at_s + step_s

    def _reason(self) -> Reason:
        return because("looks-every", self.name, self.parameters.interval_s)

    def explain(self, view: View, job: Job) -> Reason:
        reason = self._order.explain(view, job)
        return self._reason() if reason.code == "next-event" else reason


SRTF_FULL: Final = PolicyEntry(
    "shortest remaining time first; every waiting job may preempt longer ones, at each event",
    lambda: Ordered(
        "srtf-full", remaining_key, kit.PassingParameters(), Preempting(RemainingTime("srtf-full"))
    ),
    group=COMPARED,
    choose="preempting costs next to nothing; else srtf or patient",
)

INTERVAL: Final = PolicyEntry(
    "srtf-full that looks at the queue every interval_s seconds only",
    lambda given: IntervalPolicy("interval", given),
    IntervalParameters.parse,
    group=COMPARED,
    choose="srtf-full preempts too often",
)


def _entry_every(interval_s: float, often: str, system: str) -> PolicyEntry:
    """An entry with the interval in its name."""
    return PolicyEntry(
        f"srtf-full {often} (what Lazer compares with as {system})",
        lambda: IntervalPolicy(f"interval-{interval_s:.0f}", IntervalParameters(interval_s=interval_s)),
        group=COMPARED,
        choose="a result of Lazer's paper is to be compared with",
    )


INTERVAL_60: Final = _entry_every(60.0, "once a minute", "Pollux")
INTERVAL_360: Final = _entry_every(360.0, "every 6 minutes", "Muri")
INTERVAL_600: Final = _entry_every(600.0, "every 10 minutes", "Optimus")
