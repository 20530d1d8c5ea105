"""patient: smallest service first over the whole queue, where no preemption is for nothing.

Source: ours. Whoever waits is asked in the order of remaining time x GPUs after each arrival, release of
devices and end of a load. What it does differently from SRTF is count what a change costs:

* A job that loads is never preempted. So no load is ever for nothing: there are no futile preemptions,
  which Lazer (section 3.2) measures and tries to foresee; here they cannot happen. A reservation may be
  replaced, as long as nothing was loaded for it.
* A preemption must gain more than it costs: the victim must have more time left than the newcomer's remaining
  time and load, and the victim's own load and two of its pauses. It must have more service left as well, or
  wide jobs and narrow ones would take turns in preempting each other.
* If enough devices become free anyway before a preempting newcomer would have begun to train, it waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from cotenant.controller.domain.actions import NOTHING, Decision, Wake
from cotenant.controller.domain.events import AnyEvent, FirstStepDone
from cotenant.controller.domain.ids import DeviceId, HostId
from cotenant.controller.domain.job import Job, Phase
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import View
from cotenant.controller.policies.base import Candidates, is_quiet, why_waiting
from cotenant.controller.policies.service import by_service
from cotenant.controller.policies.victims import devices_by_host, is_kept_together
from cotenant.controller.policies.waking import Alarm
from cotenant.controller.policies.whole_queue import (
    Newcomers,
    Why,
    find_room,
    rearrange,
    reserved,
    take_room,
    whose_turn,
)  # fmt: skip


def cost_s(victim: Job) -> float:
    """What it costs to put a running job back and start it again: its load and two pauses."""
    return victim.expected_load_s + 2.0 * victim.expected_pause_s


def needs_s(newcomer: Job) -> float:
    """How long a waiting job will hold its devices; infinite if nobody knows."""
    left_s = newcomer.remaining_s
    return float("inf") if left_s is None else left_s + newcomer.expected_load_s


Spare = tuple[float, int, float, Job]
"""A running job that may be preempted, in the order in which it would be: its remaining service, negative
(the most comes first); its number; its time left beyond what it costs to put it back; the job."""


def spare(view: View, asking: Iterable[Job]) -> list[Spare]:
    """All that could be preempted by one of those who ask, once per pass. It looks at each job that runs
    longer than the shortest who asks; it does not grow with the queue."""
    now_s, least_s = view.now_s, min(map(needs_s, asking), default=float("inf"))
    found: list[Spare] = []
    for job in reversed(view.running()):
        ends_in_s = job.end_s - now_s
        if ends_in_s <= least_s:  # No later one has more left than this time to its end.
            break
        left_s = ends_in_s / job.slowdown
        spare_s = left_s - job.expected_load_s - 2.0 * job.expected_pause_s
        if spare_s > least_s and job.preemptible and not job.aged and job.remaining_s is not None:
            found.append((-left_s * job.spec.gpus_min, job.number, spare_s, job))
    found.sort()
    return found


class SoonEnds:
    """Running jobs in the order of their ends: looked at once per pass, and no further than anybody asks."""

    def __init__(self, view: View) -> None:
        self._view = view
        # Late ones may be so for long.
        self._rest = (job for job in view.running() if job.end_s > view.now_s)
        self._next = next(self._rest, None)
        self._jobs: list[Job] = []
        self._ends_s: list[float] = []
        self._gpus = [0]
        """Of the first so many of these jobs together."""

    def are_enough(self, plan: Plan, job: Job, until_s: float) -> bool:
        """Whether by number alone, on one host where one host must do, the job may find enough devices among
        those free and those of jobs that end by then. A no is certain, a yes is not."""
        while self._next is not None and self._next.end_s <= until_s:
            self._jobs.append(self._next)
            self._ends_s.append(self._next.end_s)
            self._gpus.append(self._gpus[-1] + self._next.spec.gpus_min)
            self._next = next(self._rest, None)
        count = bisect_right(self._ends_s, until_s)
        view, gpus, free = self._view, job.spec.gpus_min, plan.free_everywhere()
        if free + self._gpus[count] < gpus:
            return False
        if gpus == 1 or not is_kept_together(view, view.shape(job)):
            return True
        on_host: Counter[HostId] = Counter()
        for one in self._jobs[:count]:
            for host_id, devices in devices_by_host(view, one):
                on_host[host_id] += devices
        most = max((plan.free_on(host_id) + devices for host_id, devices in on_host.items()), default=0)
        return most >= gpus or free >= gpus


class Round:
    """One pass over the queue: the order of patient, and which devices are promised to those that wait for
    them, so that nobody else counts on the same ones."""

    name = "patient"
    is_total = False

    def __init__(self, view: View, asking: Iterable[Job]) -> None:
        self.until_s: float | None = None
        """When it should be seen whether devices that jobs wait for did become free."""
        self._view = view
        self._promised: list[tuple[Job, tuple[DeviceId, ...]]] = []
        self._asking = asking
        self._running: list[Spare] | None = None
        self._soon, self._soon_s = Plan(view), float("inf")
        self._kept, self._kept_promises, self._kept_actions = self._soon, 0, -1
        self._ending: Iterator[Job] = iter(())
        self._next_ending: Job | None = None
        self._most_spare_s = 0.0
        self._soon_ends = SoonEnds(view)

    def behind(self, plan: Plan, job: Job) -> Iterator[Job]:
        """Running jobs whose leaving pays, most remaining service first; then reservations."""
        mine_s = needs_s(job)
        if self._running is None:  # Many passes end before anybody asks.
            self._running = spare(self._view, self._asking)
            self._most_spare_s = max([spare_s for _, _, spare_s, _ in self._running], default=0.0)
        running = self._worth_preempting(plan, job, mine_s) if mine_s < self._most_spare_s else iter(())
        if not self._view.claimants():
            return running
        mine = (by_service(job), mine_s)
        return chain(running, (other for other in reserved(plan) if not other.aged and _both(mine, other)))

    def _worth_preempting(self, plan: Plan, newcomer: Job, mine_s: float) -> Iterator[Job]:
        """Jobs that stand after the newcomer and have more to spare than it needs."""
        (mine_gpu_s,) = by_service(newcomer)
        for less_gpu_s, _, spare_s, job in self._running or ():
            if -less_gpu_s <= mine_gpu_s:
                return
            if spare_s > mine_s and not plan.is_leaving(job.job_id):
                yield job

    def make_room(self, plan: Plan, job: Job, behind: Iterator[Job]) -> bool:
        first = next(behind)
        if first.phase is Phase.RUNNING and self.is_worth_waiting(plan, job, first):
            return True
        room = find_room(plan, job, chain((first,), behind))
        if room is None:
            return False
        take_room(plan, job, room, self.name, _why_gain(plan.view, job, room.victims))
        return True

    def is_worth_waiting(self, plan: Plan, job: Job, victim: Job) -> bool:
        """Whether enough devices get free by themselves before the job could train on those of a victim."""
        until_s = plan.view.now_s + victim.expected_pause_s + job.expected_load_s
        if not self._soon_ends.are_enough(plan, job, until_s):
            return False
        devices = self._free_by(plan, until_s).find_free(job)
        if devices is None:
            return False
        self._promised.append((job, devices))
        self._soon.suppose_placed(job, devices)
        self.until_s = until_s if self.until_s is None else min(self.until_s, until_s)
        return True

    def _free_by(self, plan: Plan, until_s: float) -> Plan:
        """The plan with the devices of jobs that will have ended, but for those that were promised. Built
        once, and carried on as long as the plan is the same and the time no earlier one."""
        now_s = plan.view.now_s
        if until_s < self._soon_s or self._kept_actions != len(plan.actions):
            self._soon = self._without_promised(plan).fork()
            # Late ones may be so for long.
            self._ending = (one for one in plan.view.running() if one.end_s > now_s)
            self._next_ending = next(self._ending, None)
        while self._next_ending is not None and self._next_ending.end_s <= until_s:
            self._soon.suppose_left(self._next_ending)
            self._next_ending = next(self._ending, None)
        self._soon_s = until_s
        return self._soon

    def _without_promised(self, plan: Plan) -> Plan:
        """The plan as it is, without the devices that were promised; kept from one look to the next."""
        if self._kept_actions != len(plan.actions):
            self._kept, self._kept_promises, self._kept_actions = plan.fork(), 0, len(plan.actions)
        for job, devices in self._promised[self._kept_promises :]:
            self._kept.suppose_placed(job, devices)
        self._kept_promises = len(self._promised)
        return self._kept


def _both(mine: tuple[tuple[float, ...], float], other: Job) -> bool:
    """Whether a reserved job stands after one of this order and need in both ways."""
    return mine[0] < by_service(other) and mine[1] < needs_s(other)


def _why_gain(view: View, newcomer: Job, victims: Sequence[Job]) -> Why:
    """What the newcomer needs and the change costs, against what the victims have left."""
    mine_s = needs_s(newcomer)
    left_s = {victim.job_id: victim.remaining_now_s(view.now_s) or 0.0 for victim in victims}
    costs_s = {v.job_id: cost_s(v) if v.phase is Phase.RUNNING else 0.0 for v in victims}
    names = ", ".join(left_s)
    most_s, least_s = max(costs_s.values(), default=0.0), min(left_s.values(), default=0.0)
    return Why(
        because("preempts-and-gains", mine_s, most_s, least_s, names),
        {
            job_id: because("preempted-and-gains", newcomer.job_id, mine_s, costs_s[job_id], left)
            for job_id, left in left_s.items()
        },
    )


class Patient:
    """Waits where a preemption would not pay. Remembers only when it asked to be woken."""

    name = Round.name

    def __init__(self) -> None:
        self._check = Alarm()

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return by_service(job)

    def decide(self, view: View, event: AnyEvent) -> Decision:
        if not view.queued_count() or is_quiet(view, event):
            return NOTHING
        plan = Plan(view)
        if isinstance(event, FirstStepDone) and not plan.any_free() and not is_wanted(view, event):
            return NOTHING
        turn = self._only_newcomers(plan, event)
        if turn is None:
            plan, turn = Plan(view), Round(view, view.heads())
            rearrange(plan, turn, Candidates(view))
        if turn.until_s is not None and not self._check.is_set(view.now_s):
            plan.actions.append(Wake(at_s=turn.until_s, reason=because("devices-soon")))
        return Decision(actions=tuple(plan.actions)) if plan.actions else NOTHING

    def _only_newcomers(self, plan: Plan, event: AnyEvent) -> Round | None:
        """An arrival with nothing free is the newcomer's own affair (see `whose_turn`), unless it might wait
        for devices: then one must know who else does. None: ask the whole queue."""
        waiting = whose_turn(plan, event)
        if not isinstance(waiting, Newcomers):
            return None
        turn = Round(plan.view, plan.view.newcomers())
        rearrange(plan, turn, waiting)
        return turn if turn.until_s is None else None

    def observe(self, view: View, event: AnyEvent, decision: Decision) -> None:
        self._check.observe(view.now_s, decision)

    def explain(self, view: View, job: Job) -> Reason:
        reason = why_waiting(view, job, self.name)
        if (
            reason.code not in ("first-no-devices", "behind-no-devices", "fragmented")
            or job.remaining_s is None
        ):
            return reason
        plan, turn = Plan(view), Round(view, [job])
        first = next(turn.behind(plan, job), None)
        if first is None:
            return because("gains-nothing", needs_s(job)) if view.on_devices() else reason
        waits = first.phase is Phase.RUNNING and turn.is_worth_waiting(plan, job, first)
        return because("devices-soon") if waits else reason

    def save(self) -> bytes:
        return self._check.save()

    def load(self, state: bytes) -> None:
        self._check.load(state)


def is_wanted(view: View, event: FirstStepDone) -> bool:
    """Whether the job that has got going is one that a waiting job could preempt."""
    job = view.jobs.get(event.job_id)
    if job is None or not job.preemptible or job.remaining_s is None:
        return False
    spare_s = job.remaining_s - cost_s(job)
    return any(needs_s(head) < spare_s for head in view.heads())
