"""Carries out a decision: each action as far as the ledger allows, and why not where it does not.

Rule: devices are given out here and nowhere else; whatever a policy wants is checked against the ledger as it
is after the actions before it.
"""

from __future__ import annotations

from cotenant.controller import domain
from cotenant.controller.engine.events import resizing
from cotenant.controller.engine.stages.admission import Admission
from cotenant.controller.engine.stages.priority_guard import why_not_preempted
from cotenant.controller.engine.state import placing
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.placing import exceeds_hosts, find_spared


class Committing:
    """Carries out decisions on one ledger."""

    def __init__(self, dispatch: Dispatch, current: CurrentPolicy, admission: Admission) -> None:
        self._dispatch, self._ledger = dispatch, dispatch.ledger
        self._current, self._admission = current, admission
        self.refusals: list[domain.Reason] = []
        """Why actions of the last decision were not carried out."""

    def commit(self, decision: domain.Decision) -> domain.Decision:
        """Carries out what the ledger allows. Returns the decision without what the hosts have no cores or
        main memory for: that is not recorded.

        To be asked again at once is granted only after something was carried out: where all was refused, the
        answer would be the same, again and again, for ever.
        """
        # An action alone takes nothing from anybody for somebody else.
        _, *others = decision.actions
        kept_back = find_spared(self._ledger, decision.actions) if others else ()
        beyond_hosts: list[domain.AnyAction] = []
        refused = carried_out = 0
        for action in decision.actions:
            refusal: domain.Reason | None = None
            match action:
                case _ if action in kept_back:
                    refusal = domain.because("refused-profiling")
                case domain.Place() | domain.Share() | domain.Resize() if (
                    refusal := exceeds_hosts(self._ledger, action)
                ) is not None:
                    beyond_hosts.append(action)
                case domain.Place() | domain.Share():
                    refusal = self._place(action)
                case domain.Preempt():
                    refusal = self._preempt(action)
                case domain.Wake() if action.at_s <= self._ledger.now_s and refused and not carried_out:
                    continue
                case _:
                    refusal = self._carry_out(action)
            refused += refusal is not None
            carried_out += refusal is None and not isinstance(action, domain.Wake)
            if refusal is not None:
                self.refusals.append(refusal)
        if not beyond_hosts:
            return decision
        kept = tuple(action for action in decision.actions if action not in beyond_hosts)
        return domain.Decision(actions=kept)

    def _carry_out(
        self, action: domain.Hold | domain.Defer | domain.Wake | domain.Compute | domain.Resize
    ) -> domain.Reason | None:
        """Does it if the ledger allows; else returns why not."""
        now_s = self._ledger.now_s
        match action:
            case domain.Hold():
                job = self._ledger.jobs.get(action.job_id)
                if job is not None and job.phase is domain.Phase.QUEUED:
                    self._ledger.records.explain(job, action.reason)
            case domain.Defer():
                job = self._ledger.jobs.get(action.job_id)
                if job is None or job.phase is not domain.QUEUED:
                    return domain.because(
                        "refused-phase", f"to defer job {action.job_id}", job.phase if job else "gone"
                    )
                if not now_s <= action.until_s < float("inf"):
                    return domain.because("refused-time", action.until_s)
                self._ledger.records.explain(job, action.reason)
                self._dispatch.wake_at(action.until_s, "wake", "", 0)
            case domain.Wake():
                if not now_s <= action.at_s < float("inf"):
                    return domain.because("refused-time", action.at_s)
                self._dispatch.wake_at(action.at_s, "wake", "", 0)
            case domain.Compute():
                self._dispatch.out.append(
                    domain.ComputeRequest(
                        command_id=self._dispatch.command_id(),
                        request_id=action.request_id,
                        kind=action.kind,
                        payload=action.payload,
                    )
                )
            case domain.Resize():
                limits, shares = self._admission.limits, self._current.traits.shares
                return resizing.resize(self._dispatch, limits, action, policy_shares=shares)
        return None

    def _place(self, action: domain.Place | domain.Share) -> domain.Reason | None:
        ledger, shares = self._ledger, self._current.traits.shares
        if action.job_id not in ledger.jobs:
            return placing.check(ledger, action)
        job = ledger.jobs[action.job_id]
        over = self._why_over(job, placing.size_on(ledger, job, action.devices))
        if over is not None:
            return over
        found = placing.plain(ledger, job, action, policy_shares=shares)
        if found is None:
            refusal = placing.check(ledger, action)
            if refusal is not None:
                return refusal
            placement = placing.placement(ledger, job, action, policy_shares=shares)
            found = placement, placing.waits_for(ledger, job, placement)
        placement, victims = found
        if victims:
            ledger.records.reserve(job, placement, victims)
            ledger.holdings.claim(job, action.devices)
        else:
            self._dispatch.launch(job, placement)
        return None

    def _why_over(self, job: domain.Job, devices: float) -> domain.Reason | None:
        """Why a limit keeps these devices from a waiting job. If it cannot have the fewest it takes, what its
        owner's other jobs have got in this decision is why: the policy is asked again, and does not find it
        in the queue."""
        limits = self._admission.limits
        over = limits.check(job, devices) if limits is not None and job.phase is domain.QUEUED else None
        if over is not None and limits is not None and limits.check(job, job.spec.size) is not None:
            self._dispatch.wake_at(self._ledger.now_s, "wake", "", 0)
        return over

    def _preempt(self, action: domain.Preempt) -> domain.Reason | None:
        ledger = self._ledger
        newcomer = ledger.jobs.get(action.for_job) if action.for_job is not None else None
        over = None if newcomer is None else self._why_over(newcomer, newcomer.spec.size)
        refusal = over or why_not_preempted(ledger, action)
        if refusal is not None:
            return refusal
        job = ledger.jobs[action.job_id]
        if job.phase is domain.RESERVED:
            self._dispatch.unreserve(job, action.reason, preempted=True)
            return None
        if job.phase is domain.LOADING or ledger.now_s - job.phase_since_s < self._current.run_promised_s:
            ledger.records.preempt_early(job)
        self._dispatch.stop(job, "preempted", action.reason, save=True)
        return None
