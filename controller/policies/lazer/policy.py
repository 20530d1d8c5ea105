"""Lazer: preempt as srtf does, but after a predicted deferral. Algorithms 1 and 2.

Rule: free devices come first (ours), and only a newcomer preempts: a job that has never started, when it
arrives and once more at the end of its deferral. After that it is one of WQ, which gets what becomes free.

Departs from the paper in that free devices are tried before the orchestrator, that all free devices (not only
those of the job that ended) are offered, and that aged jobs are neither passed over nor preempted. The
orchestrator asks whether the newcomer really fits on what its victims leave; the paper counts GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from cotenant.controller.domain.actions import NOTHING, AnyAction, Decision, Defer
from cotenant.controller.domain.events import AnyEvent
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import Job, Phase
from cotenant.controller.domain.plan import Plan
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.view import View
from cotenant.controller.policies.base import QUIET, Candidates, is_possible, why_waiting
from cotenant.controller.policies.classic import by_remaining
from cotenant.controller.policies.lazer.deferrals import Deferral, Deferrals
from cotenant.controller.policies.lazer.learning import PREDICTED, Learner, Memory
from cotenant.controller.policies.lazer.parameters import LazerParameters
from cotenant.controller.policies.victims import victims_for, worth_preempting


class State(msgspec.Struct, kw_only=True):
    """All that the policy remembers."""

    deferrals: list[Deferral]
    memory: Memory


class Lazer:
    name = "lazer"

    def __init__(self, parameters: LazerParameters | None = None) -> None:
        self.parameters = parameters if parameters is not None else LazerParameters()
        self.learner = Learner(self.parameters)
        self._deferrals = Deferrals()

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return by_remaining(job)

    # --- Deciding ----------------------------------------------------------------------------------

    def decide(self, view: View, event: AnyEvent) -> Decision:
        actions: list[AnyAction] = []
        if view.queued_count():
            due = self._deferrals.due(view)
            if due or not isinstance(event, QUIET):
                actions = self._schedule(view, due)
        request = self.learner.request()
        if request is not None:
            actions.append(request)
        return Decision(actions=tuple(actions)) if actions else NOTHING

    def _schedule(self, view: View, due: list[Job]) -> list[AnyAction]:
        plan = Plan(view)
        waited_for = self._offer_free(plan)
        drq: set[JobId] = set()
        for newcomer, is_due in self._newcomers(view, due):
            if plan.is_placed(newcomer.job_id):
                continue
            if waited_for is not None and view.order_key(waited_for) < view.order_key(newcomer):
                continue  # What it would free is for the one that waits for devices.
            drq.update(self._orchestrate(plan, newcomer, drq, defer=not is_due))
        return plan.actions

    def _newcomers(self, view: View, due: list[Job]) -> Iterator[tuple[Job, bool]]:
        """Those whose deferral is over (True), then those that have just arrived."""
        again = {job.job_id for job in due}
        yield from ((job, True) for job in due)
        for job in view.newcomers():
            new = job.attempt == 0 and job.aborted_preemptions == 0 and job.job_id not in again
            if new and self._deferrals.of(view, job.job_id) is None:
                yield job, False

    def _offer_free(self, plan: Plan) -> Job | None:
        """The completion handler: all free devices to WQ, shortest remaining first, as long as they fit.

        Returns the job for which devices are kept back: one that has aged, or the head if `reserve_head`.
        """
        view, reserve = plan.view, self.parameters.reserve_head
        if not reserve and not plan.any_free():
            return next((job for job in aged_first(view) if is_possible(view, job)), None)
        candidates = Candidates(view)
        while (job := candidates.next()) is not None:
            if plan.is_placed(job.job_id) or self._is_out_of_wq(view, job):
                candidates.again(job)
                continue
            devices = plan.find_free(job)
            if devices is not None:
                plan.place(job, devices, because("free-devices-in-order", self.name, len(devices)))
                candidates.again(job)
            elif (job.aged or reserve) and is_possible(view, job):
                return job
            elif not plan.any_free() and not job.aged:
                return None
        return None

    def _is_out_of_wq(self, view: View, job: Job) -> bool:
        if self.parameters.dwq_offered or job.aged:
            return False
        return self._deferrals.of(view, job.job_id) is not None

    def _orchestrate(self, plan: Plan, newcomer: Job, drq: set[JobId], *, defer: bool) -> tuple[JobId, ...]:
        """Algorithm 2, then the deferral predictor unless the newcomer has been deferred before.

        Returns the victims of a deferral: they are in DRQ from now on.
        """
        found = victims_for(plan, newcomer, self._running_queue(plan, newcomer, drq))
        if found is None or not found[0]:
            return ()
        victims, devices = found
        now_s = plan.view.now_s
        names = tuple(victim.job_id for victim in victims)
        least_s = min(victim.remaining_now_s(now_s) or 0.0 for victim in victims)
        mine_s = newcomer.remaining_s or 0.0
        reason = because("preempts", mine_s, least_s, ", ".join(names))
        if defer:
            already = sum(action.reason.code in PREDICTED for action in plan.actions)
            # A job that loads leaves without a save.
            pause_s = max(v.expected_pause_s if v.phase is Phase.RUNNING else 0.0 for v in victims)
            told = self.learner.predict(now_s, mine_s, newcomer.expected_load_s, pause_s, already)
            operands = (*told.operands(), ", ".join(names))
            if told.x_s > 0.0:
                plan.actions.append(
                    Defer(
                        job_id=newcomer.job_id,
                        victims=names,
                        until_s=now_s + told.x_s,
                        reason=because("deferred", *operands),
                    )
                )
                return names
            reason = because("preempts-at-once", *operands, mine_s, least_s)
        for victim in victims:
            left_s = victim.remaining_now_s(now_s) or 0.0
            plan.preempt(victim, newcomer, because("preempted-for", newcomer.job_id, mine_s, left_s))
        plan.place(newcomer, devices, reason)
        return ()

    def _running_queue(self, plan: Plan, newcomer: Job, drq: set[JobId]) -> Iterator[Job]:
        """RQ: what may be preempted for the newcomer, most remaining time first."""
        for job in worth_preempting(plan, newcomer):
            if self.parameters.protect_loading and job.phase is Phase.LOADING:
                continue
            if job.job_id not in drq and not self._deferrals.holds(plan.view, job):
                yield job

    # --- Remembering -------------------------------------------------------------------------------

    def observe(self, view: View, event: AnyEvent, decision: Decision) -> None:
        self.learner.observe(view, event, decision)
        self._deferrals.end_due(view.now_s)
        for action in decision.actions:
            if isinstance(action, Defer):
                self._defer(view, action)

    def _defer(self, view: View, action: Defer) -> None:
        job = view.jobs.get(action.job_id)
        if job is None or job.phase is not Phase.QUEUED:
            return  # Refused.
        victims = tuple((v, view.jobs[v].attempt) for v in action.victims if v in view.jobs)
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
        state = State(deferrals=self._deferrals.save(), memory=self.learner.save())
        return msgspec.msgpack.encode(state)

    def load(self, state: bytes) -> None:
        known = msgspec.msgpack.decode(state, type=State)
        self._deferrals = Deferrals(known.deferrals)
        self.learner = Learner(self.parameters, known.memory)

    # --- Explaining --------------------------------------------------------------------------------

    def explain(self, view: View, job: Job) -> Reason:
        deferral = self._deferrals.of(view, job.job_id)
        if deferral is not None:
            names = ", ".join(victim_id for victim_id, _ in deferral.victims)
            return because("deferred-until", names, deferral.until_s - view.now_s)
        return why_waiting(view, job, self.name)


def aged_first(view: View) -> Iterator[Job]:
    """The first of each shape that has aged: they stand before all others."""
    return itertools.takewhile(lambda job: job.aged, view.heads())
