"""Training budgets (`--budget`): counts what jobs train, and ends those that have used theirs.

Rule: a budget is an upper limit of what a job still trains, before the policy decides; of a job whose length
nobody knows it is the length. The stage looks at every job with a budget twice in an event, when the event
has changed the ledger and when the decision has, since both may change a job's pace.
"""

from __future__ import annotations

from math import inf

import msgspec

from cotenant.controller.domain import ENDED, Job, Phase, because
from cotenant.controller.engine.stages.free_times import NEAR_S
from cotenant.controller.engine.state.counting import count_training
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.phases import RareWish

SOURCE = "budget"
"""Of an estimate that is what the budget leaves."""
SOONER = 0.01
"""An alarm is set anew if it would come later than the budget's end by such a share of what is left."""


class BudgetStage:
    """Looks after the budgets of one engine."""

    serves: RareWish = "budget"

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch, self._ledger = dispatch, dispatch.ledger

    def settle(self) -> None:
        """Counts all training until now, stops the jobs that have had enough, and sets alarms."""
        budgeted = self._ledger.phases.budgeted
        for job in list(budgeted.values()):
            if job.spec.budget_s is None:
                del budgeted[job.job_id]
                continue
            count_training(self._ledger, job)
            if job.phase in ENDED:
                del budgeted[job.job_id]
                continue
            self._expect(job)
            if job.phase is Phase.RUNNING:
                self._end_or_wake(job)

    def _expect(self, job: Job) -> None:
        """What the job still trains is at most what its budget leaves."""
        now_s, said = self._ledger.now_s, job.estimate
        left_s, expected_s = job.budget_left_s(now_s), job.remaining_now_s(now_s)
        assert left_s is not None
        is_known = expected_s is not None and not said.is_guess and not said.source.startswith(SOURCE)
        apart_s = inf if expected_s is None else expected_s - left_s
        if (apart_s if is_known else abs(apart_s)) > NEAR_S:
            self._ledger.records.note_progress(job, job.progress.step, left_s, SOURCE)

    def _end_or_wake(self, job: Job) -> None:
        now_s, use, left_s = self._ledger.now_s, job.budget, job.budget_left_s(self._ledger.now_s)
        assert use is not None and left_s is not None
        if left_s == 0.0:
            self._dispatch.stop(job, "budget", because("budget", f"{job.spec.budget_s:g}"), save=True)
            return
        left_by_clock_s = left_s * use.slowdown
        due_s, alarm_s = now_s + left_by_clock_s, use.alarm_s if use.alarm_s > now_s else inf
        if use.slowdown and due_s < alarm_s - SOONER * left_by_clock_s:
            alarm_s = due_s
            self._dispatch.wake_at(due_s, "budget", job.job_id, job.attempt.number)
        if alarm_s != use.alarm_s:
            self._ledger.records.note_training(job, msgspec.structs.replace(use, alarm_s=alarm_s))
