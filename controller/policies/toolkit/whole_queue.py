"""A queue whose earlier jobs take the devices of jobs that stand later in one common order; and the time at
which a policy that decides at certain times has asked to be woken.

Rule: one pass in order. Jobs that stand earlier are asked first, for free devices and then for those of jobs
that stand later; so no job is started on devices that an earlier one would take from it at the next event.

A pass looks at the first waiting job of each scheduling class, and at the next only once that one is settled;
it ends when nothing is free and no waiting job stands before one that runs. Its cost does not grow with the
queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import LACK_DEVICES, Plan, View, is_aged_waiting, is_possible, why_waiting
from cotenant.controller.policies.toolkit import late
from cotenant.controller.policies.toolkit.compared import Why
from cotenant.controller.policies.toolkit.victims import FreedDevices, enough_of, room_of, victims_for
from cotenant.controller.policies.toolkit.walk import Candidates, Each, JobsToAsk, Then, walk


class QueueOrder(ABC):
    """Who stands before whom, among jobs that wait and jobs that have devices."""

    name: str

    @abstractmethod
    def list_victims(self, plan: Plan, job: domain.Job) -> Iterator[domain.Job]:
        """Jobs that may lose their devices, or their reservation, to a waiting job; last in the order
        first."""

    @abstractmethod
    def why(self, view: View, job: domain.Job, victims: Sequence[domain.Job]) -> Why:
        """Compares a waiting job with those that it preempts."""

    def why_last(self, view: View, job: domain.Job) -> domain.Reason | None:
        """What is told to a waiting job behind which nobody stands; None: its place in the order is not
        known, and others are not compared with it."""
        return None

    def is_anybody_behind(self, plan: Plan, job: domain.Job) -> bool:
        """Whether it is told that somebody stands behind it."""
        return next(self.list_victims(plan, job), None) is not None

    def explain(self, view: View, job: domain.Job) -> domain.Reason:
        """Why a job waits where it may take the devices of those behind it."""
        reason = why_waiting(view, job, self.name)
        if reason.code not in LACK_DEVICES or not view.running.jobs_by_end():
            return reason
        last = self.why_last(view, job)
        return reason if last is None or self.is_anybody_behind(Plan(view), job) else last

    def is_last(self, job: domain.Job) -> bool:
        """Whether no job after this one has anybody behind it, now that this one has nobody."""
        return True

    def room(self, plan: Plan, job: domain.Job, behind: Iterator[domain.Job]) -> FreedDevices | None:
        """Devices for a job that found nothing free, and those of the jobs behind it that leave them."""
        return find_room(plan, job, behind)

    def settle(self, plan: Plan, job: domain.Job, room: FreedDevices) -> None:
        """Carries out a preemption."""
        take_room(plan, job, room, self.name, self.why(plan.view, job, room.victims))

    def make_room(self, plan: Plan, job: domain.Job, behind: Iterator[domain.Job]) -> bool:
        """Decide about a job that found nothing free; False if nothing can be done for it now."""
        room = self.room(plan, job, behind)
        if room is not None:
            self.settle(plan, job, room)
        return room is not None


ROUTINE = (ev.JobArrived, ev.FirstStepDone, ev.AttemptEnded)
"""Frequent events."""


def whom_to_ask(plan: Plan, event: ev.AnyEvent) -> Candidates | Each | None:
    """Which jobs to ask after an event, given that the whole queue was asked after each one before it.

    While nothing is free, those who found no victims before an arrival find none after it: jobs that run
    only come nearer to their end, and what started since then stood before them. Nor do they after a first
    step, or the end of an attempt whose devices somebody waited for. Any other event may change that.
    """
    if not isinstance(event, ROUTINE) or plan.any_free() or is_aged_waiting(plan.view):
        return Candidates(plan.view)
    newcomers = plan.view.queue.newcomers()
    return Each(newcomers) if newcomers else None


def rearrange(plan: Plan, order: QueueOrder, waiting: JobsToAsk, spared: late.Spared | None = None) -> None:
    """Give each job in order free devices, else those of jobs that stand behind it, else nothing."""
    spared = spared or late.Spared()
    kept = late.KeptForLate(plan, preempts=True, spared=spared)

    def otherwise(job: domain.Job) -> Then:
        if job.aged:
            if is_possible(plan.view, job) and not make_room_for_late(plan, job, order.name, spared):
                kept.keep(job)
                return Then.PASS
            return Then.AGAIN
        behind = order.list_victims(plan, job)
        last = next(behind, None)
        if last is not None:
            return Then.AGAIN if order.make_room(plan, job, chain((last,), behind)) else Then.PASS
        return Then.PASS if plan.any_free() or not order.is_last(job) else Then.STOP

    walk(plan, waiting, order.name, otherwise, find=kept.find_free)


def rearrange_after(plan: Plan, order: QueueOrder, event: ev.AnyEvent) -> Plan:
    """Rearrange what an event may have changed, and return the plan."""
    waiting = whom_to_ask(plan, event)
    if waiting is not None:
        rearrange(plan, order, waiting)
    return plan


def make_room_for_late(plan: Plan, job: domain.Job, order: str, spared: late.Spared) -> bool:
    """Preempt for a late job whatever can resume, most left first; False if that is not enough."""
    room = None
    if spared.if_possible is not late.spare_nobody:
        others = (one for one in late.not_late(plan, job, spared.always) if not spared.if_possible(one))
        room = find_room(plan, job, others)
    room = room or find_room(plan, job, late.not_late(plan, job, spared.always))
    if room is None:
        return False
    why = Why(
        domain.because("turn-preempts", ", ".join(victim.job_id for victim in room.victims)),
        {victim.job_id: domain.because("turn-preempted", job.job_id) for victim in room.victims},
    )
    take_room(plan, job, room, order, why)
    return True


def is_anybody_left(plan: Plan) -> bool:
    """Whether a job waits once the plan is carried out; those who lose their devices come back."""
    placed = sum(1 for action in plan.actions if isinstance(action, domain.Place))
    return placed < max(len(plan.view.queue), len(plan.actions))


def find_room(plan: Plan, job: domain.Job, behind: Iterator[domain.Job]) -> FreedDevices | None:
    """The last jobs in the order whose leaving is enough; fewer of them, or none, where others leave
    already."""
    leaving = leaving_now(plan)
    if not leaving:
        return victims_for(plan, job, behind)
    enough = enough_of(plan, job, behind)
    if enough is None:
        return None
    trial = plan.fork()
    for one in leaving:
        trial.suppose_left(one)
    if (devices := trial.find_free(job)) is not None:
        return FreedDevices((), devices)
    needed, more = enough
    return room_of(trial, job, (), chain(needed, more))


def leaving_now(plan: Plan) -> list[domain.Job]:
    """Jobs that save and leave, by this plan or one before it, by predicted end; not those whose end is
    unknown."""
    found = [job for job in plan.view.running.leaving if job.phase is domain.CHECKPOINTING]
    found += [
        job for job in plan.list_preempted() if job.phase is domain.RUNNING or job.phase is domain.LOADING
    ]
    found.sort(key=lambda job: (job.estimate.end_s, job.number))
    return found


def take_room(plan: Plan, job: domain.Job, room: FreedDevices, order: str, why: Why) -> None:
    """Preempt the victims, if there are any, and reserve what they leave."""
    if not room.victims:
        plan.place(job, room.devices, domain.because("devices-being-left", order, len(room.devices)))
        return
    for victim in room.victims:
        plan.preempt(victim, job, why.victims[victim.job_id])
    plan.place(job, room.devices, why.newcomer)
    if any(victim.phase is domain.Phase.RESERVED for victim in room.victims):
        # It waits again, and may find others: ask as soon as this decision is carried out.
        plan.actions.append(
            domain.Wake(at_s=plan.view.now_s, reason=domain.because("reservation-replaced", job.job_id))
        )


def list_reserved(plan: Plan) -> list[domain.Job]:
    """Jobs that wait for their victims to leave, as far as this plan has not put them back; class hp, which
    keeps what it was given, left out."""
    view = plan.view
    jobs = [view.jobs[job_id] for job_id in view.holdings.claimants() if not plan.is_leaving(job_id)]
    return [job for job in jobs if job.spec.job_class != "hp"]


class WakeUp:
    """Only `observe` changes it, from the decisions themselves; so it is the same after a recovery."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    def is_set(self, now_s: float) -> bool:
        """Whether a time was asked for and is still to come."""
        return self.at_s is not None and self.at_s > now_s

    def comes_by(self, at_s: float, now_s: float) -> bool:
        """Whether a time was asked for that is still to come, and no later than this one."""
        return self.is_set(now_s) and self.at_s is not None and self.at_s <= at_s

    def is_due(self, now_s: float) -> bool:
        return self.at_s is not None and self.at_s <= now_s

    def observe(self, now_s: float, decision: domain.Decision) -> None:
        if self.is_due(now_s):
            self.at_s = None
        for action in decision.actions:
            if isinstance(action, domain.Wake) and action.at_s > now_s:
                self.at_s = action.at_s

    def save(self) -> bytes:
        return msgspec.msgpack.encode(self.at_s)

    def load(self, state: bytes) -> None:
        self.at_s = msgspec.msgpack.decode(state, type=float | None) if state else None


class RemembersWakeUp:
    """The base of policies that remember only the time for which they asked to be woken."""

    def __init__(self) -> None:
        self._wake_up = WakeUp()

    def ask_again(self, plan: Plan, at_s: float | None, reason: domain.Reason) -> None:
        """Ask to be woken then, unless it will be sooner anyway."""
        if at_s is not None and not self._wake_up.comes_by(at_s, plan.view.now_s):
            plan.actions.append(domain.Wake(at_s=at_s, reason=reason))

    def observe(self, view: View, event: ev.AnyEvent, decision: domain.Decision) -> None:
        """Learns for which time it has asked."""
        self._wake_up.observe(view.now_s, decision)

    def save(self) -> bytes:
        return self._wake_up.save()

    def load(self, state: bytes) -> None:
        self._wake_up.load(state)
