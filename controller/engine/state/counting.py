"""Counts what a job with a budget has trained. Rule: the record says so as of the present event; whoever asks
in between reads `Job.budget_left_s`.
"""

from __future__ import annotations

from cotenant.controller.domain import LOADING, RUNNING, WAITING, BudgetUse, Job
from cotenant.controller.engine.state.ledger import Ledger


def count_training(ledger: Ledger, job: Job) -> None:
    """Takes in the job's steps, and a new pace; of a job whose steps nobody sees, time at its old pace."""
    now_s, before = ledger.now_s, job.budget or BudgetUse()
    use, step, slowdown = before, job.progress.step, 0.0
    if job.phase is RUNNING and not is_loading(job):
        known = job.measured.solo_step_s is not None
        slowdown = job.estimate.slowdown if known else ledger.expected_slowdown(job)
    if slowdown != before.slowdown or step != before.step:
        use = before.pass_time(now_s, slowdown)
    if before.slowdown and job.phase is RUNNING and job.phase_since_s == now_s:
        use = use.forget_time()  # It makes its first step only now.
    if step != before.step:
        use = use.count_to(step, job.measured.solo_step_s)
    if job.phase in WAITING:
        use = use.forget_time()  # What was not saved is lost.
    if use != job.budget:
        ledger.records.note_training(job, use)


def is_budget_used(ledger: Ledger, job: Job) -> bool:
    """Whether the job has trained as long as its budget allows."""
    if job.spec.budget_s is None:
        return False
    count_training(ledger, job)
    return job.budget_left_s(ledger.now_s) == 0.0


def is_loading(job: Job) -> bool:
    """Whether its first step is still to come: it is loading, or was taken to run before its library said
    hello."""
    return job.phase is LOADING or (job.attempt.start_assumed_s is not None and bool(job.attempt.capable))
