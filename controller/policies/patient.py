"""patient: smallest service first over the whole queue, without futile preemptions.

Source: ours. Waiting jobs are asked in the order of remaining time x GPUs^0.75 after each arrival, release of
devices and end of a load. Unlike SRTF it counts what a change costs:

* A job that loads is never preempted. So the futile preemptions that Lazer (section 3.2) measures and tries
  to foresee cannot happen. A reservation may be replaced, as long as nothing was loaded for it.
* A preemption must gain more than it costs: the victim must have more time left than the newcomer's remaining
  time and load, and the victim's own load and two of its pauses.
* A gang needs more than that, for it preempts several: all its victims have more service left, or together
  they lose less than the gang would by waiting. What they lose is the gang's time and the cost of the change,
  once per victim; its wait is until enough devices become free by themselves.
* If enough devices become free anyway within the victim's pause and the newcomer's load, when a preempting
  newcomer would begin to train, it waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Final, Literal

from cotenant.controller.domain import NOTHING, Decision, DeviceId, Job, Phase, Reason, Wake, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import LACK_DEVICES, Plan, View, why_waiting
from cotenant.controller.policies import toolkit as kit
from cotenant.controller.policies.base import PolicyParameters, Traits, Within, is_quiet
from cotenant.controller.policies.entries import FIRST, PolicyEntry
from cotenant.controller.policies.ordered import UNKNOWN_S
from cotenant.controller.policies.sharing import ExpectedReleases, Together


class PatientParameters(PolicyParameters, frozen=True, kw_only=True):
    """The defaults are what experiments/results/patient.md found best; the others are for comparison."""

    gang: Literal["wait", "each"] = "wait"
    """When a gang may preempt: also where all its victims together lose less than its own wait is, or only
    where each of them has more service left."""
    width_power: Annotated[float, Within(0.0, 2.0)] = 0.75
    """Service is time x GPUs to this power: 1 is SRSF's, 0 is SRTF's."""
    waits_load: Literal["newcomer", "victim"] = "newcomer"
    """Whose load, after the victim's pause, it waits for devices that become free by themselves."""

    def service_s(self, job: Job) -> float:
        """Service of a waiting job, so it does not change; `UNKNOWN_S` if the job's length is unknown."""
        left_s = job.estimate.remaining_s
        return UNKNOWN_S if left_s is None else left_s * self.width(job)

    def width(self, job: Job) -> float:
        gpus: int = job.spec.gpus_min
        return 1.0 if gpus == 1 else float(gpus**self.width_power)


def cost_s(victim: Job) -> float:
    """What it costs to preempt a running job and start it again: its load and two pauses."""
    return victim.estimate.load_s + 2.0 * victim.estimate.pause_s


CostOf = Callable[[Job], float]
"""What it costs to preempt a running job, in seconds."""


def needs_s(newcomer: Job) -> float:
    """How long a waiting job will hold its devices; infinite if unknown."""
    left_s = newcomer.estimate.remaining_s
    return float("inf") if left_s is None else left_s + newcomer.estimate.load_s


ROUNDING_S: Final = 1e-6
"""What a job has left is its end less the time now, which may be more by so much than it had when it started.
Two jobs of one length that cost nothing to preempt would else take turns for ever."""
NOBODY: Final[Iterator[Job]] = iter(())
"""The place behind which most jobs that ask look for victims."""
Spare = tuple[float, int, float, Job]
"""A running job that may be preempted, in the order in which it would be: its remaining service, negative
(the most comes first); its number; its time left beyond what it costs to put it back; the job."""


def spare(view: View, asking: Iterable[Job], parameters: PatientParameters) -> list[Spare]:
    """All jobs that one of those who ask could preempt, once per pass. It looks at each job that runs longer
    than the shortest who asks; it does not grow with the queue."""
    now_s, least_s = view.now_s, min(map(needs_s, asking), default=float("inf"))
    found: list[Spare] = []
    for job in reversed(view.running.training):
        ends_in_s = job.estimate.end_s - now_s
        if ends_in_s <= least_s:  # No later one has more left than this time to its end.
            break
        left_s = ends_in_s / job.estimate.slowdown
        spare_s = left_s - ROUNDING_S - job.estimate.load_s - 2.0 * job.estimate.pause_s
        if spare_s > least_s and job.preemptible and not job.aged and job.estimate.remaining_s is not None:
            found.append((-left_s * parameters.width(job), job.number, spare_s, job))
    found.sort()
    return found


class Round(kit.QueueOrder):
    """A pass over the queue in the order of `patient`, which keeps account of the devices that are promised
    to those that wait for them, so that no other job counts on the same ones."""

    name = "patient"

    def __init__(
        self,
        view: View,
        asking: Iterable[Job],
        parameters: PatientParameters,
        soon: ExpectedReleases | None = None,
    ) -> None:
        self.until_s: float | None = None
        """When to check whether the devices that jobs wait for have become free."""
        self._view = view
        self._asking, self._parameters = asking, parameters
        self._running: list[Spare] | None = None
        self._most_gpu_s = self._most_spare_s = 0.0
        """The most of any running job: a job with as much service, or need of time, preempts none."""
        self._widest, self._least_cost_s, self._least_gang_s = 1, 0.0, float("inf")
        """Of running jobs; and the least time that a gang which asks has left."""
        self._reserved: list[tuple[float, float, Job]] = []
        """Service and need of jobs whose reservation may be replaced."""
        self._together, self._spared = Together(view), list[Job]()
        """Of the running jobs, in their order."""
        self.soon = soon

    def cost_s(self, victim: Job) -> float:
        """What it costs to preempt a running job; never less than the function of this name says."""
        return cost_s(victim)

    @property
    def spared(self) -> kit.Spared:
        """Whom it leaves alone although they could resume."""
        return kit.Spared()

    def list_spare(self) -> list[Spare]:
        """The running jobs that this pass may preempt."""
        return spare(self._view, self._asking, self._parameters)

    def _look(self, plan: Plan) -> list[Spare]:
        """Collects the victims only now: many passes end before they need any."""
        running = self._running = self.list_spare()
        if running:
            self._most_gpu_s = -running[0][0]
            self._most_spare_s = max([spare_s for _, _, spare_s, _ in running])
            if self._parameters.gang == "wait":
                gangs = [job.estimate.remaining_s for job in self._asking if job.spec.gpus_min > 1]
                self._least_gang_s = min([s for s in gangs if s is not None], default=float("inf"))
                if self._least_gang_s < self._most_spare_s:
                    self._widest = max([job.spec.gpus_min for *_, job in running])
                    self._least_cost_s = min([cost_s(job) for *_, job in running])
        if self._view.holdings.claimants():
            self._reserved = [
                (self._parameters.service_s(r), needs_s(r), r) for r in kit.list_reserved(plan) if not r.aged
            ]
        return running

    def list_victims(self, plan: Plan, job: Job) -> Iterator[Job]:
        """Running jobs whose leaving pays, most remaining service first; then reservations. For a gang, those
        with less service than it has follow: whether they pay is seen when all of them are known."""
        running = self._running
        if running is None:
            running = self._look(plan)
        mine_s, mine_gpu_s = needs_s(job), self._parameters.service_s(job)
        found = NOBODY
        if mine_s < self._most_spare_s:
            if self._may_put_back_less(job):
                found = _worth_preempting(plan, running, job, 0.0)
            elif mine_gpu_s < self._most_gpu_s:
                found = _worth_preempting(plan, running, job, mine_gpu_s)
        if self._reserved:
            replaced = [
                other
                for other_gpu_s, other_s, other in self._reserved
                if mine_gpu_s < other_gpu_s
                and mine_s < other_s
                and other.spec.priority <= job.spec.priority
                and not plan.is_leaving(other.job_id)
            ]
            return chain(found, replaced)
        return found

    def _may_put_back_less(self, job: Job) -> bool:
        """Whether it may preempt jobs with less service than it has. One device never does: its victim has
        more time left, so more service."""
        return job.spec.gpus_min > 1 and self._parameters.gang == "wait"

    def is_last(self, job: Job) -> bool:
        """Whether no later job can find a victim either, now that this one found none behind it."""
        mine_gpu_s = self._parameters.service_s(job)
        return (
            mine_gpu_s >= self._most_gpu_s
            and self._least_gang_s >= self._most_spare_s
            and all(mine_gpu_s >= gpu_s for gpu_s, _, _ in self._reserved)
        )

    def make_room(self, plan: Plan, job: Job, behind: Iterator[Job]) -> bool:
        first = next(behind)
        if first.phase is Phase.RUNNING and self.is_worth_waiting(plan, job, first):
            return True
        return super().make_room(plan, job, chain((first,), behind))

    def why(self, view: View, job: Job, victims: Sequence[Job]) -> kit.Why:
        return why_gain(view, job, victims, self.cost_s)

    def room(self, plan: Plan, job: Job, behind: Iterator[Job]) -> kit.FreedDevices | None:
        """Victims whose leaving makes room, and pays for all of them together."""
        if not self._may_find_room(plan, job):
            if not self._may_put_back_less(job):
                return None
            fewest = -(-(job.spec.gpus_min - plan.free_everywhere) // self._widest)
            loss_s = fewest * (needs_s(job) + self._least_cost_s)
            if self._find_soon(plan, job, loss_s) is not None:
                return None
        room = super().room(plan, job, behind)
        return room if room is not None and self._is_worth_it(plan, job, room.victims) else None

    def gains_nothing(self, plan: Plan, job: Job) -> bool:
        """Whether no victim has more service, and all that might make room together lose too much."""
        running = self._running or ()
        has_less = not running or -running[0][0] <= self._parameters.service_s(job)
        return has_less and not self._reserved and self.room(plan, job, self.list_victims(plan, job)) is None

    def _is_worth_it(self, plan: Plan, job: Job, victims: Sequence[Job]) -> bool:
        """Whether all victims have more service left, or lose less together than the job by waiting."""
        if not victims or not self._may_put_back_less(job):
            return True
        view, parameters = self._view, self._parameters
        mine_s, mine_gpu_s = needs_s(job), parameters.service_s(job)
        if all((v.remaining_now_s(view.now_s) or 0.0) * parameters.width(v) > mine_gpu_s for v in victims):
            return True
        loss_s = sum(mine_s + (self.cost_s(v) if v.phase is Phase.RUNNING else 0.0) for v in victims)
        return self._find_soon(plan, job, loss_s) is None

    def _find_soon(self, plan: Plan, job: Job, in_s: float) -> tuple[DeviceId, ...] | None:
        """Devices that the job gets without a preemption."""
        self.soon = self.soon or ExpectedReleases(plan.view)
        return self.soon.find(plan, job, plan.view.now_s + in_s)

    def _may_find_room(self, plan: Plan, job: Job) -> bool:
        """Whether jobs with more service may be enough. A wide job that waits long is asked often, and mostly
        in vain: the devices that running jobs have on one host are counted once for all that ask."""
        gpus, running = job.spec.gpus_min, self._running or ()
        if gpus == 1 or self._reserved or plan.any_free():
            return True
        if not self._spared:
            self._spared = [job for *_, job in running]
        mine_gpu_s = self._parameters.service_s(job)
        before = bisect_left(running, (-mine_gpu_s,))
        if self._together.most(self._spared, before) >= gpus:
            return True
        return not kit.is_kept_together(self._view, self._view.queue.class_of(job))

    def is_worth_waiting(self, plan: Plan, job: Job, victim: Job) -> bool:
        """Whether enough devices get free by themselves before the job could train on those of a victim."""
        loads = victim if self._parameters.waits_load == "victim" else job
        in_s = victim.estimate.pause_s + loads.estimate.load_s
        devices = self._find_soon(plan, job, in_s)
        if devices is None:
            return False
        assert self.soon is not None
        self.soon.promise(job, devices)
        until_s = plan.view.now_s + in_s
        self.until_s = until_s if self.until_s is None else min(self.until_s, until_s)
        return True


def _worth_preempting(
    plan: Plan, running: Sequence[Spare], newcomer: Job, mine_gpu_s: float
) -> Iterator[Job]:
    """Jobs that stand after one of this service and have more to spare than the newcomer needs; none of a
    higher priority."""
    mine_s, priority = needs_s(newcomer), newcomer.spec.priority
    for less_gpu_s, _, spare_s, job in running:
        if -less_gpu_s <= mine_gpu_s:
            return
        if spare_s > mine_s and job.spec.priority <= priority and not plan.is_leaving(job.job_id):
            yield job


def why_gain(view: View, newcomer: Job, victims: Sequence[Job], cost_of: CostOf) -> kit.Why:
    """What the newcomer needs and the change costs, against what the victims have left."""
    mine = newcomer.told_left(view.now_s, needs_s(newcomer))
    left = {victim.job_id: victim.told_left(view.now_s) for victim in victims}
    costs_s = {v.job_id: cost_of(v) if v.phase is Phase.RUNNING else 0.0 for v in victims}
    most_s = max(costs_s.values(), default=0.0)
    return kit.Why(
        because("preempts-and-gains", mine, most_s, kit.least_told(left.values()), ", ".join(left)),
        {
            job_id: because("preempted-and-gains", newcomer.job_id, mine, costs_s[job_id], each)
            for job_id, each in left.items()
        },
    )


class Patient(kit.RemembersWakeUp):
    """Waits where a preemption would not pay. Remembers only when it asked to be woken."""

    name = Round.name
    traits = Traits(preempts=True, orders_by_size=True)

    def __init__(self, parameters: PatientParameters) -> None:
        super().__init__()
        self.parameters = parameters

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return (self.parameters.service_s(job),)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        plan, _ = self.arrange(view, event)
        return NOTHING if plan is None else plan.decision()

    def arrange(self, view: View, event: ev.AnyEvent) -> tuple[Plan | None, bool]:
        """What to do, None if nobody was asked; and whether only newcomers were.

        An arrival with nothing free is the newcomer's own affair (see `whom_to_ask`), as long as it does
        not wait for devices that get free by themselves."""
        if not view.queue:
            return None, False
        if isinstance(event, ev.ProgressSeen):
            if event.total_steps is None or not is_wanted(view, event):
                return None, False
        elif is_quiet(view, event):
            return None, False
        plan = self.begin(view, event)
        if isinstance(event, ev.FirstStepDone) and not plan.any_free() and not is_wanted(view, event):
            return None, False
        waiting = kit.whom_to_ask(plan, event)
        is_partial = isinstance(waiting, kit.Each)
        present = self.round(view, view.queue.newcomers() if is_partial else view.queue.heads())
        kit.rearrange(plan, present, waiting or kit.Candidates(view), present.spared)
        if is_partial and present.until_s is not None:
            # One that might wait for devices must know who else does.
            seen = present.soon if present.soon is not None and present.soon.is_unpromised() else None
            plan, present, is_partial = (
                self.begin(view, event),
                self.round(view, view.queue.heads(), seen),
                False,
            )
            kit.rearrange(plan, present, kit.Candidates(view), present.spared)
        wake = self.wake(plan, present)
        if wake is not None:
            plan.actions.append(wake)
        return plan, is_partial

    def begin(self, view: View, _: ev.AnyEvent) -> Plan:
        """The plan before anybody in the queue is asked."""
        return Plan(view)

    def wake(self, plan: Plan, present: Round) -> Wake | None:
        """When to look at the queue again although nothing has happened."""
        if present.until_s is None or self._wake_up.is_set(plan.view.now_s):
            return None
        return Wake(at_s=present.until_s, reason=because("devices-soon"))

    def round(self, view: View, asking: Iterable[Job], soon: ExpectedReleases | None = None) -> Round:
        return Round(view, asking, self.parameters, soon)

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if reason.code not in LACK_DEVICES or job.estimate.remaining_s is None:
            return reason
        plan, present = Plan(view), self.round(view, [job])
        first = next(present.list_victims(plan, job), None)
        if first is None or present.gains_nothing(plan, job):
            told = job.told_left(view.now_s, needs_s(job))
            return because("gains-nothing", told) if view.running.jobs_by_end() else reason
        waits = first.phase is Phase.RUNNING and present.is_worth_waiting(plan, job, first)
        return because("devices-soon") if waits else reason


def is_wanted(view: View, event: ev.FirstStepDone | ev.ProgressSeen) -> bool:
    """Whether a waiting job could preempt the job that has just made its first step."""
    job = view.jobs.get(event.job_id)
    if job is None or not job.preemptible or job.estimate.remaining_s is None:
        return False
    spare_s = (job.remaining_now_s(view.now_s) or 0.0) - cost_s(job)
    return any(head.aged or needs_s(head) < spare_s for head in view.queue.heads())


PATIENT: Final = PolicyEntry(
    "smallest remaining service first; preempts only where that pays, never a job that loads",
    Patient,
    PatientParameters.parse,
    group=FIRST,
    choose="jobs have expected times and resume: the best mean time of ours on most traces",
)
