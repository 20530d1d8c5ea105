"""Lazer: preempt as srtf does, but after a predicted deferral. Algorithms 1 and 2, with their queues: DWQ,
the newcomers whose preemption is put off, and DRQ, the running jobs chosen to make room for them.

Rule: free devices come first (ours), and only a newcomer preempts (`toolkit/victims.py` says who is one):
when it arrives, and once more at the end of its deferral. After that it is one of WQ, which gets what becomes
free.

Rule: a deferral counts only while it is still true: the newcomer has been queued without a break, and the
victim is in the attempt in which it was chosen. So nobody has to tell `Deferrals` that a newcomer was
cancelled or held, or that a victim ended, was lost or started again; it scans nothing.

Departs from the paper in that free devices are tried before the orchestrator, that all free devices (not only
those of the job that ended) are offered, and that aged jobs are neither passed over nor preempted. The
orchestrator asks whether the newcomer really fits on what its victims leave; the paper counts GPUs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.lazer.learning import PREDICTED, LearnedMemory, Learner
from cotenant.controller.papers.lazer.parameters import LazerParameters
from cotenant.controller.planning import Plan, View, first_aged, why_waiting
from cotenant.controller.policies import toolkit as kit
from cotenant.controller.policies.base import Traits, is_quiet
from cotenant.controller.policies.entries import PREEMPT, PolicyEntry
from cotenant.controller.policies.ordered import preempt_for_each, remaining_key


class Deferral(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The deferral of a newcomer and its victims."""

    until_s: float
    number: int
    """The newcomer's number: deferrals that end together are decided in order of arrival."""
    job_id: domain.JobId
    since_s: float
    """The time since which the newcomer has been queued."""
    victims: tuple[tuple[domain.JobId, domain.AttemptNo], ...]


class Deferrals:
    def __init__(self, deferrals: Iterable[Deferral] = ()) -> None:
        self._by_job: dict[domain.JobId, Deferral] = {}
        self._for_whom: dict[tuple[domain.JobId, domain.AttemptNo], domain.JobId] = {}
        """Victim -> newcomer."""
        self._ends: list[tuple[float, int, domain.JobId]] = []
        for deferral in deferrals:
            self.add(deferral)

    def save(self) -> list[Deferral]:
        return sorted(self._by_job.values(), key=lambda d: (d.until_s, d.number))

    def add(self, deferral: Deferral) -> None:
        self._drop(deferral.job_id)
        for victim in deferral.victims:
            if victim in self._for_whom:  # Of a newcomer that does not wait any more, or it were not offered.
                self._drop(self._for_whom[victim])
        self._by_job[deferral.job_id] = deferral
        for victim in deferral.victims:
            self._for_whom[victim] = deferral.job_id
        heapq.heappush(self._ends, (deferral.until_s, deferral.number, deferral.job_id))

    def end_due(self, now_s: float) -> None:
        """Forget those whose time has come: they have just been decided."""
        while self._ends and self._ends[0][0] <= now_s:
            until_s, _, job_id = heapq.heappop(self._ends)
            deferral = self._by_job.get(job_id)
            if deferral is not None and deferral.until_s == until_s:
                self._drop(job_id)

    def _drop(self, job_id: domain.JobId) -> None:
        deferral = self._by_job.pop(job_id, None)
        for victim in deferral.victims if deferral is not None else ():
            del self._for_whom[victim]

    # --- Reading -----------------------------------------------------------------------------------

    def due(self, view: View) -> list[domain.Job]:
        """Newcomers whose time has come and who still wait, in order."""
        if not self._ends or self._ends[0][0] > view.now_s:
            return []
        ended = sorted(
            (d for d in self._by_job.values() if d.until_s <= view.now_s and still_waits(view, d)),
            key=lambda d: (d.until_s, d.number),
        )
        return [view.jobs[d.job_id] for d in ended]

    def find(self, view: View, job_id: domain.JobId) -> Deferral | None:
        """The deferral of a job in DWQ: one that waits, and whose time has not come."""
        deferral = self._by_job.get(job_id)
        if deferral is None or deferral.until_s <= view.now_s or not still_waits(view, deferral):
            return None
        return deferral

    def holds(self, view: View, job: domain.Job) -> bool:
        """Whether a running job is in DRQ."""
        newcomer_id = self._for_whom.get((job.job_id, job.attempt.number))
        return newcomer_id is not None and self.find(view, newcomer_id) is not None


def still_waits(view: View, deferral: Deferral) -> bool:
    job = view.jobs.get(deferral.job_id)
    return job is not None and job.phase is domain.Phase.QUEUED and job.phase_since_s == deferral.since_s


class LazerState(msgspec.Struct, kw_only=True):
    """All that the policy remembers."""

    deferrals: list[Deferral]
    memory: LearnedMemory


class Lazer:
    name = "lazer"
    queue_key = staticmethod(remaining_key)
    traits = Traits(preempts=True)

    def __init__(self, parameters: LazerParameters) -> None:
        self.parameters = parameters
        self.learner = Learner(self.parameters)
        self._deferrals = Deferrals()

    # --- Deciding ----------------------------------------------------------------------------------

    def decide(self, view: View, event: ev.AnyEvent) -> domain.Decision:
        actions: list[domain.AnyAction] = []
        if view.queue:
            due = self._deferrals.due(view)
            if due or not is_quiet(view, event):
                actions = self._schedule(view, due)
        request = self.learner.request()
        if request is not None:
            actions.append(request)
        return domain.Decision(actions=tuple(actions)) if actions else domain.NOTHING

    def _schedule(self, view: View, due: list[domain.Job]) -> list[domain.AnyAction]:
        plan = Plan(view)
        waited_for = self._offer_free(plan)
        drq: set[domain.JobId] = set()
        again = {job.job_id for job in due}
        fresh = [
            job
            for job in kit.newcomers(view.queue.newcomers(), self.parameters.newcomers)
            if job.job_id not in again and self._deferrals.find(view, job.job_id) is None
        ]

        def orchestrate(plan: Plan, newcomer: domain.Job) -> None:
            can_wait = self.parameters.x_max_s > 0.0 and newcomer.job_id not in again
            drq.update(self._orchestrate(plan, newcomer, drq, defer=can_wait))

        preempt_for_each(plan, (*due, *fresh), waited_for, orchestrate)
        return plan.actions

    def _offer_free(self, plan: Plan) -> domain.Job | None:
        """Handles a completion: offers all free devices to WQ, shortest remaining first, as long as they fit.

        Returns the job for which devices are kept back: one that has aged, or the head if `reserve_head`.
        """
        view, reserve = plan.view, self.parameters.reserve_head
        if not reserve and not plan.any_free():
            return first_aged(view)
        return kit.place_in_order(
            plan, self.name, strict=reserve, passed_over=lambda job: self._is_out_of_wq(view, job)
        )

    def _is_out_of_wq(self, view: View, job: domain.Job) -> bool:
        if self.parameters.dwq_offered or job.aged:
            return False
        return self._deferrals.find(view, job.job_id) is not None

    def _orchestrate(
        self, plan: Plan, newcomer: domain.Job, drq: set[domain.JobId], *, defer: bool
    ) -> tuple[domain.JobId, ...]:
        """Algorithm 2, then the deferral predictor unless the newcomer has been deferred before.

        Returns the victims of a deferral: they are in DRQ from now on.
        """
        found = kit.victims_for(plan, newcomer, self._running_queue(plan, newcomer, drq))
        if found is None or not found.victims:
            return ()
        victims = found.victims
        names = tuple(victim.job_id for victim in victims)
        why = kit.why_shorter(plan.view, newcomer, victims)
        if not defer:
            kit.take_room(plan, newcomer, found, self.name, why)
            return ()
        now_s, mine_s = plan.view.now_s, newcomer.estimate.remaining_s or 0.0
        already = sum(action.reason.code in PREDICTED for action in plan.actions)
        # A job that loads leaves without a save.
        pause_s = max(v.estimate.pause_s if v.phase is domain.Phase.RUNNING else 0.0 for v in victims)
        told = self.learner.predict(now_s, mine_s, newcomer.estimate.load_s, pause_s, already)
        operands = (*told.operands(), ", ".join(names))
        if told.x_s > 0.0:
            reason = domain.because("deferred", *operands)
            until_s = now_s + told.x_s
            plan.actions.append(
                domain.Defer(job_id=newcomer.job_id, victims=names, until_s=until_s, reason=reason)
            )
            return names
        least = kit.least_told(victim.told_left(now_s) for victim in victims)
        at_once = domain.because("preempts-at-once", *operands, newcomer.told_left(now_s), least)
        kit.take_room(plan, newcomer, found, self.name, why._replace(newcomer=at_once))
        return ()

    def _running_queue(
        self, plan: Plan, newcomer: domain.Job, drq: set[domain.JobId]
    ) -> Iterator[domain.Job]:
        """The running queue (RQ): what may be preempted for the newcomer, most remaining time first."""
        for job in kit.worth_preempting(plan, newcomer):
            if self.parameters.protect_loading and job.phase is domain.Phase.LOADING:
                continue
            if job.job_id not in drq and not self._deferrals.holds(plan.view, job):
                yield job

    # --- Remembering -------------------------------------------------------------------------------

    def observe(self, view: View, event: ev.AnyEvent, decision: domain.Decision) -> None:
        self.learner.observe(view, event, decision)
        self._deferrals.end_due(view.now_s)
        for action in decision.actions:
            if isinstance(action, domain.Defer):
                self._defer(view, action)

    def _defer(self, view: View, action: domain.Defer) -> None:
        job = view.jobs.get(action.job_id)
        if job is None or job.phase is not domain.Phase.QUEUED:
            return  # Refused.
        victims = tuple((v, view.jobs[v].attempt.number) for v in action.victims if v in view.jobs)
        self._deferrals.add(
            Deferral(
                until_s=action.until_s,
                number=job.number,
                job_id=job.job_id,
                since_s=job.phase_since_s,
                victims=victims,
            )
        )

    def save(self) -> bytes:
        state = LazerState(deferrals=self._deferrals.save(), memory=self.learner.save())
        return msgspec.msgpack.encode(state)

    def load(self, state: bytes) -> None:
        known = msgspec.msgpack.decode(state, type=LazerState)
        self._deferrals = Deferrals(known.deferrals)
        self.learner = Learner(self.parameters, known.memory)

    def state_in_words(self, view: View) -> dict[str, str]:
        """The state of the surrogate, and its data."""
        learner = self.learner
        return {
            "surrogate": learner.describe(),
            "stage": f"{learner.stage} (bootstrap up to {self.parameters.bootstrap} samples)",
            "mean time between arrivals": f"{learner.gap_s(view.now_s):.3g} s",
            "preemptions put off now": str(len(self._deferrals.save())),
        }

    # --- Explaining --------------------------------------------------------------------------------

    def explain(self, view: View, job: domain.Job) -> domain.Reason:
        deferral = self._deferrals.find(view, job.job_id)
        if deferral is not None:
            names = ", ".join(victim_id for victim_id, _ in deferral.victims)
            return domain.because("deferred-until", names, deferral.until_s - view.now_s)
        return why_waiting(view, job, self.name)


LAZER: Final = PolicyEntry(
    "as srtf, but a preemption is put off by a time that is learned from your load (Lazer)",
    Lazer,
    LazerParameters.parse,
    group=PREEMPT,
    choose="loading and saving are slow against jobs' lengths, as with large models",
    needs=("botorch", "bo"),
)
