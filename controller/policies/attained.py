"""Tiresias: least attained service first, in a few queues, by time on devices x GPUs; no length need be
known.

Source: Tiresias (NSDI '19) section 3.2, discretised 2D-LAS. A job enters the first queue. When its attained
service reaches a queue's threshold it goes to the next one, also while it runs. Earlier queues go first,
whole jobs at a time; within a queue the order is first come, first served.

Departs from the paper in that a place within a queue is the order of arrival, not of the last demotion (so
that it does not move while a job waits), that time spent loading is no service, and that decisions are
taken at events and demotions instead of once a minute. Against starvation there is the ageing of all
size-based policies in place of the paper's knob.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from cotenant.controller.domain import NOTHING, Decision, Job, Phase, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View
from cotenant.controller.policies import toolkit as kit
from cotenant.controller.policies.base import PolicyParameters, Traits, is_quiet
from cotenant.controller.policies.entries import FIRST, PREEMPT, PolicyEntry

PRESETS: dict[str, str] = {
    "one-hour": "3250",
    "two-hours": "7200",
    "five-hours": "18000",
    "sixteen-hours": "57600",
    "three-queues": "3250,7200",
}
"""Thresholds in GPU-seconds. The first and `three-queues` come from the published simulator."""


class TiresiasParameters(PolicyParameters, frozen=True, kw_only=True):
    """Where one queue ends and the next begins."""

    thresholds_gpu_s: str = "3250"
    """Attained GPU-seconds at which a job goes to the next queue: rising numbers with commas between them,
    one fewer than queues, or the name of a preset."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = self.limits()
        if not limits or limits[0] <= 0 or any(a >= b for a, b in pairwise(limits)):
            raise ValueError(
                f"tiresias: thresholds_gpu_s must be rising numbers above 0 or one of {', '.join(PRESETS)}, "
                f"got {self.thresholds_gpu_s!r}"
            )

    def limits(self) -> tuple[float, ...]:
        """The thresholds between queues, in GPU-seconds; empty if they cannot be read."""
        text = PRESETS.get(self.thresholds_gpu_s, self.thresholds_gpu_s)
        try:
            return tuple(float(part) for part in text.split(","))
        except ValueError:
            return ()


NOBODY: Final[Iterator[Job]] = iter(())
"""The place behind which most jobs that ask look for victims."""


def attained_gpu_s(job: Job, now_s: float) -> float:
    """Time on devices past loading x GPUs, work that was lost and done again included."""
    running_s = now_s - job.phase_since_s if job.phase is Phase.RUNNING else 0.0
    return (job.spent.run_s + running_s) * job.spec.gpus_min


class Queues:
    """Which queue a job is in, the first being 0."""

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits = limits

    def queue_of(self, job: Job, now_s: float) -> int:
        """The queue of a job; a threshold counts as reached a microsecond early, since wake-up times are
        rounded."""
        return bisect_right(self.limits, attained_gpu_s(job, now_s) + 1e-6 * job.spec.gpus_min)

    def rows(self, jobs: Iterable[Job], now_s: float | None) -> list[tuple[int, int, Job]]:
        """Queue, number and job of many jobs that are RUNNING, or if `now_s` is None of jobs that are not and
        so attain nothing: each decision asks for all of them."""
        limits, rows = self.limits, []
        for job in jobs:
            run_s, gpus = job.spent.run_s, job.spec.gpus_min
            if now_s is not None:
                run_s += now_s - job.phase_since_s
            rows.append((bisect_right(limits, run_s * gpus + 1e-6 * gpus), job.number, job))
        return rows

    def next_demotion_s(self, view: View) -> float | None:
        """When the next running job reaches a threshold, if none is stopped; None if none will."""
        now_s, limits, last_gpu_s = view.now_s, self.limits, self.limits[-1]
        at_s = float("inf")
        for job in view.running.training:
            gpus = job.spec.gpus_min
            gpu_s = (job.spent.run_s + (now_s - job.phase_since_s)) * gpus
            if gpu_s + 1e-6 * gpus < last_gpu_s:
                limit_gpu_s = limits[bisect_right(limits, gpu_s + 1e-6 * gpus)]
                at_s = min(at_s, now_s + (limit_gpu_s - gpu_s) / gpus)
        return None if at_s == float("inf") else at_s


class AttainedService(kit.QueueOrder):
    """The order of discretised 2D-LAS at one moment."""

    name = "tiresias"

    def __init__(self, queues: Queues, view: View) -> None:
        self._queues, self._view = queues, view
        self._others: list[tuple[int, int, Job]] | None = None
        """Queue, number and job of all that have devices or a reservation; unsorted, made when first
        needed."""

    def list_victims(self, plan: Plan, job: Job) -> Iterator[Job]:
        """Jobs of later queues, and those of the same that came later; the last of all first. Sorts those
        only, and mostly there are none."""
        view = self._view
        if self._others is None:
            self._others = self._queues.rows(view.running.training, view.now_s)
            self._others += self._queues.rows(chain(view.running.loading, kit.list_reserved(plan)), None)
        mine = (self._queues.queue_of(job, view.now_s), job.number)
        later = [other for other in self._others if other > mine]
        if not later:
            return NOBODY
        later.sort(reverse=True)
        return (other for _, _, other in later if kit.may_give_way(plan, other, job))

    def why(self, view: View, job: Job, victims: Sequence[Job]) -> kit.Why:
        now_s = view.now_s
        queue = self._queues.queue_of(job, now_s) + 1
        queues = {victim.job_id: self._queues.queue_of(victim, now_s) + 1 for victim in victims}
        gpu_s = {victim.job_id: attained_gpu_s(victim, now_s) for victim in victims}
        return kit.Why(
            because("preempts-attained", queue, min(queues.values(), default=0), ", ".join(queues)),
            {
                job_id: because("preempted-attained", job.job_id, queue, queues[job_id], gpu_s[job_id])
                for job_id in queues
            },
        )

    def why_last(self, view: View, job: Job) -> Reason:
        return because("outranks-nobody", self._queues.queue_of(job, view.now_s) + 1)


class Tiresias(kit.RemembersWakeUp):
    """The policy Tiresias: two-dimensional least attained service, with discrete queues.

    While a job waits, the policy asks to be woken at the next demotion of a running job; it remembers that
    time alone.
    """

    name = AttainedService.name
    traits = Traits(preempts=True, orders_by_size=True)

    def __init__(self, parameters: TiresiasParameters) -> None:
        super().__init__()
        self.parameters = parameters
        self._queues = Queues(self.parameters.limits())

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return (float(self._queues.queue_of(job, job.phase_since_s)),)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not view.queue or is_quiet(view, event):
            return NOTHING
        plan = kit.rearrange_after(Plan(view), AttainedService(self._queues, view), event)
        if kit.is_anybody_left(plan):
            self._ask_again(plan, event)
        return plan.decision()

    def _ask_again(self, plan: Plan, event: ev.AnyEvent) -> None:
        """Ask to be woken at the next demotion, unless that has been asked for. A demotion nearer than the
        one asked for can only be that of a job that got going since, or while nothing waited."""
        view = plan.view
        goes_on = not isinstance(event, ev.FirstStepDone) and len(view.queue) > len(view.queue.newcomers())
        if goes_on and self._wake_up.is_set(view.now_s):
            return
        self.ask_again(plan, self._queues.next_demotion_s(view), because("next-demotion"))

    def explain(self, view: View, job: Job) -> Reason:
        return AttainedService(self._queues, view).explain(view, job)


TIRESIAS: Final = PolicyEntry(
    "least service received so far first, in queues; needs no expected times (Tiresias)",
    Tiresias,
    TiresiasParameters.parse,
    group=FIRST,
    choose="nobody knows how long jobs take, and jobs resume",
)

LAS: Final = TIRESIAS._replace(
    about="another name of tiresias", group=PREEMPT, choose="you know it by this name"
)
