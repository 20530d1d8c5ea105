"""The end of an attempt, and what becomes of its job.

Rule: devices go back host by host, when every process of the gang there is known to be gone; the engine
decides about the job once, when the last host has reported.
"""

from __future__ import annotations

from cotenant.controller.domain import (
    CHECKPOINTING,
    FINISH,
    LEAVE,
    LEAVING,
    Change,
    ForgetJob,
    HostId,
    Job,
    Phase,
    Reason,
    because,
    natural_key,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import resizing
from cotenant.controller.engine.blame import blame, clear_suspicion
from cotenant.controller.engine.dispatch import Dispatch
from cotenant.controller.engine.estimating import learn_duration, learn_pause, remaining_from
from cotenant.controller.engine.learning import learn_whole_life
from cotenant.controller.policies.base import why_impossible

FINISHED = because("finished")
SETTLED_S = 600.0
"""A job that ran for so long without reporting a first step did start: earlier failures no longer count."""
_SEVERITY: dict[str, int] = {
    "finished": 1,
    "never-started": 2,
    "stopped": 3,
    "infra-failed": 4,
    "user-failed": 5,
}
"""Of a gang's hosts the worst outcome counts; a user's failure explains its peers' failures."""


def left_host(
    dispatch: Dispatch,
    job: Job,
    host_id: HostId,
    outcome: ev.Outcome,
    detail: str,
    workdir_missing: bool = False,
) -> None:
    """The gang's processes on one host are gone (or count as gone)."""
    host = dispatch.ledger.hosts[host_id]
    co_tenants = dispatch.ledger.partners(job) if dispatch.ledger.holdings.shared_count else ()
    dispatch.vacated += dispatch.ledger.holdings.vacate(job, host_id)
    is_blamed = outcome == "infra-failed" and not job.stop_cause and not workdir_missing
    worst = job.outcome
    if not worst or _SEVERITY[outcome] >= _SEVERITY[worst.partition(": ")[0]]:
        worst = f"{outcome}: {detail}" if detail else outcome
    dispatch.ledger.left_host(job, host_id, worst, is_blamed=is_blamed)
    for other_id in co_tenants:
        dispatch.repace(dispatch.ledger.jobs[other_id])
    if outcome == "finished" and host.failures_in_row:
        clear_suspicion(dispatch, host)
    if not job.hosts_left:
        _settle(dispatch, job)
    elif outcome != "finished" and job.phase not in LEAVING:
        reason = job.stop_reason or because("gang-peer-ended", host_id)
        dispatch.stop(job, job.stop_cause or "peer", reason, save=False)


def _settle(dispatch: Dispatch, job: Job) -> None:
    """All hosts have reported: decide what becomes of the job."""
    outcome, _, detail = job.outcome.partition(": ")
    cause, reason = job.stop_cause, job.stop_reason
    assumed_s = job.start_assumed_s
    if assumed_s is not None and dispatch.ledger.now_s - assumed_s >= SETTLED_S:
        dispatch.ledger.forgive(job)
    if cause == "resized" and outcome != "finished":
        assert reason is not None
        resizing.go_on(dispatch, job, reason)
        return
    if job.resize_to is not None:
        dispatch.give_up_resize(job)
    if outcome == "infra-failed" and cause != "faulted":  # Else what failed on a host has another reason.
        for host_id in job.to_blame:
            blame(dispatch, dispatch.ledger.hosts[host_id], job)
    if outcome == "finished":
        learn_duration(dispatch.ledger.estimates, job, dispatch.ledger.now_s)
        if dispatch.ledger.profiles.known:
            learn_whole_life(dispatch.ledger, job)
        end(dispatch, job, FINISH, FINISHED, is_complete=True)
    elif cause == "cancelled":
        assert reason is not None
        end(dispatch, job, Change.CANCEL, reason)
    elif cause == "profiled":
        assert reason is not None
        end(dispatch, job, FINISH, reason)
    elif cause == "time-limit":
        assert reason is not None
        if job.limits_over < (job.spec.requeues or 0):
            requeue(dispatch, job, LEAVE, reason)
        else:
            end(dispatch, job, Change.FAIL, reason)
    elif cause in ("preempted", "user"):
        assert reason is not None
        if job.phase is CHECKPOINTING:
            learn_pause(dispatch.ledger, job)
        requeue(dispatch, job, LEAVE, reason)
    elif cause in ("lost", "crowded"):
        assert reason is not None
        requeue(dispatch, job, Change.LEAVE, reason)
    elif cause == "faulted":
        _infra_failed(dispatch, job, str(reason))
    elif outcome == "user-failed":
        _user_failed(dispatch, job, detail)
    else:
        _infra_failed(dispatch, job, detail or outcome)


def _user_failed(dispatch: Dispatch, job: Job, detail: str) -> None:
    if dispatch.ledger.failed(job, by_user=True) <= job.spec.retries:
        requeue(dispatch, job, Change.LEAVE, because("user-failed", detail))
    else:
        end(dispatch, job, Change.FAIL, because("user-failed", detail))


def _infra_failed(dispatch: Dispatch, job: Job, detail: str) -> None:
    policy = dispatch.config.policy
    if job.workdir_missing and why_impossible(dispatch.ledger, job) is not None:
        missing = because("workdir-missing", job.spec.launch.workdir, ", ".join(job.workdir_missing))
        requeue(dispatch, job, Change.LEAVE_HELD, missing)
        return
    failures = dispatch.ledger.failed(job, by_user=False)
    if failures > policy.infra_retries:
        requeue(dispatch, job, Change.LEAVE_HELD, because("held-infra", failures, detail))
        return
    wait_s = policy.back_off_s * 2 ** (failures - 1)
    requeue(dispatch, job, Change.LEAVE_BLOCKED, because("back-off", wait_s, detail))
    dispatch.wake_at(dispatch.ledger.now_s + wait_s, "back-off", job.job_id, job.attempt)


def requeue(dispatch: Dispatch, job: Job, change: Change, reason: Reason) -> None:
    """Wait again, from the last durable step."""
    step = job.durable_step
    dispatch.ledger.requeue(job, change, reason, step, remaining_from(dispatch.ledger, job, step))
    if change is LEAVE:
        dispatch.enqueue(job)
    if job.spec.array_limit:
        dispatch.fill_array(job)


def end(dispatch: Dispatch, job: Job, change: Change, reason: Reason, *, is_complete: bool = False) -> None:
    dispatch.ledger.end(job, change, reason, is_complete=is_complete)
    ended(dispatch, job)


def ended(dispatch: Dispatch, job: Job) -> None:
    """A job is over: its hosts may forget it; jobs that depend on it are released, or cancelled with all that
    depend on them (a list of work, since a chain can be longer than the stack is deep)."""
    ended = [job]
    for one in ended:
        job_id = one.spec.job_id
        dispatch.out += [
            ForgetJob(command_id=dispatch.command_id(), host_id=host_id, job_id=job_id, job_epoch=one.epoch)
            for host_id in one.visited
        ]
        if one.spec.array_limit:
            dispatch.fill_array(one)
        waiting_on = dispatch.ledger.waiting_on
        for waiting_id in sorted(waiting_on.pop(job_id), key=natural_key) if job_id in waiting_on else ():
            waiting = dispatch.ledger.jobs.get(waiting_id)
            if waiting is not None and waiting.phase is Phase.BLOCKED:
                dispatch.ledger.change(waiting, Change.UNBLOCK, dispatch.submitted(waiting))
                if not dispatch.queue_or_block(waiting):
                    ended.append(waiting)
