"""The end of an attempt: who is blamed for it, its host or a job that shared its device, and what becomes
of its job.

Rule: devices go back host by host, when every process of the gang there is known to be gone; the engine
decides about the job once, when the last host has reported. A gang's hosts report its end in any order, and a
host that lost a peer often reports first: a fault that another host reports is still the reason (`peer` is
only a consequence), and nobody is blamed before all hosts have reported.

Rule: what a job does to itself may look like a failure of its host, so the jobs of one user alone never make
a host suspect. It takes jobs of two users, or the host's own report (`AttemptEnded.host_fault`). A suspect
host is tried again with one attempt, and cleared by a first step.

Rule: an end that was read from exit codes and words, and comes again in the same way after about the same
time, is the job's own (`FailedEnd.is_repeated_by`), since a job that runs once more does its work once more.

Rule: after a fatal fault of a GPU no job loses more than the time since its last checkpoint, and no job fails
for another's fault. A job that had its device to itself fails, as with any crash; all others go on later. The
pair is kept apart for a time that doubles with each fault, since one fault may be chance and ten are not; a
job with enough evidence against it runs alone from then on. A device that failed by itself blames no pair,
and no host: the agent has taken it out already.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.events import resizing
from cotenant.controller.engine.state import estimating
from cotenant.controller.engine.state.counting import is_budget_used
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.records import REQUEUED
from cotenant.controller.planning import why_impossible

FINISHED = domain.because("finished")
SETTLED_S = 600.0
"""A job that ran for so long without reporting a first step did start: earlier failures no longer count."""
QUICK_S: Final = 60.0
"""A job that is put back so soon after its start, again and again, waits in between."""
QUICK_WAIT_S_MAX: Final = 600.0
_SEVERITY: dict[domain.Outcome, int] = {
    "finished": 1,
    "never-started": 2,
    "stopped": 3,
    "infra-failed": 4,
    "user-failed": 5,
}
"""Of a gang's hosts the worst outcome counts; a user's failure explains its peers' failures."""


def left_host(
    dispatch: Dispatch, job: domain.Job, host_id: domain.HostId, verdict: domain.ExitVerdict
) -> None:
    """The gang's processes on one host are gone (or count as gone)."""
    outcome = verdict.outcome
    host = dispatch.ledger.hosts[host_id]
    co_tenants = dispatch.ledger.holdings.partners(job) if dispatch.ledger.holdings.shared_count else ()
    dispatch.vacated += dispatch.ledger.holdings.vacate(job, host_id)
    is_blamed = outcome == "infra-failed" and not job.attempt.stop_cause and not verdict.workdir_missing
    worst, before = verdict, job.attempt.verdict
    if before is not None:
        worst = max((verdict, before), key=lambda each: (_SEVERITY[each.outcome], bool(each.detail)))
    dispatch.ledger.records.left_host(job, host_id, worst, is_blamed=is_blamed)
    for other_id in co_tenants:
        dispatch.repace(dispatch.ledger.jobs[other_id])
    if outcome == "finished" and host.failures_in_row:
        clear_suspicion(dispatch, host)
    if not job.attempt.hosts_left:
        if job.attempt.late_s:
            dispatch.ledger.records.leave_out_lateness(job)
        _settle(dispatch, job)
    elif outcome != "finished" and job.phase not in domain.LEAVING:
        reason = job.attempt.stop_reason or domain.because("gang-peer-ended", host_id)
        dispatch.stop(job, job.attempt.stop_cause or "peer", reason, save=False)


Said = tuple[str, str]
"""What a job's owner reads of its end, and what everybody does (`ExitVerdict.said`)."""


def _settle(dispatch: Dispatch, job: domain.Job) -> None:
    """All hosts have reported: decide what becomes of the job."""
    outcome, said = _judge_again(dispatch, job)
    cause, reason = job.attempt.stop_cause, job.attempt.stop_reason
    assumed_s = job.attempt.start_assumed_s
    if assumed_s is not None and dispatch.ledger.now_s - assumed_s >= SETTLED_S:
        dispatch.ledger.records.forgive(job)
    if cause == "resized" and outcome != "finished":
        assert reason is not None
        resizing.go_on(dispatch, job, reason)
        return
    if job.resize_to is not None:
        dispatch.give_up_resize(job)
    if outcome == "infra-failed" and cause != "faulted":  # Else what failed on a host has another reason.
        for host_id in job.attempt.to_blame:
            blame(dispatch, dispatch.ledger.hosts[host_id], job)
    _conclude(dispatch, job, outcome, said)


def _conclude(dispatch: Dispatch, job: domain.Job, outcome: domain.Outcome, said: Said) -> None:
    """Ends or queues a job by why it was stopped, or else by how it ended."""
    cause, reason = job.attempt.stop_cause, job.attempt.stop_reason
    if cause == "budget" and outcome != "user-failed":
        end(
            dispatch, job, domain.FINISH, domain.because("budget", f"{job.spec.budget_s:g}"), is_complete=True
        )
    elif outcome == "finished":
        dispatch.ledger.records.ran_unseen(job)
        if dispatch.config.lengths_by_command:
            estimating.learn_duration(dispatch.ledger, job)
        if dispatch.ledger.profiles.known:
            estimating.learn_whole_life(dispatch.ledger, job)
        end(dispatch, job, domain.FINISH, _finished(job), is_complete=True)
    elif cause == "cancelled":
        assert reason is not None
        end(dispatch, job, domain.Change.CANCEL, reason)
    elif cause == "idle" and job.progress.resumable:
        assert reason is not None
        requeue(
            dispatch, job, domain.Change.LEAVE_HELD, domain.because("held-idle", *reason.operands, job.job_id)
        )
    elif cause == "idle":
        assert reason is not None
        end(dispatch, job, domain.Change.CANCEL, reason)
    elif cause == "profiled":
        assert reason is not None
        end(dispatch, job, domain.FINISH, reason)
    elif cause == "time-limit":
        assert reason is not None
        if job.counts.limits_over < job.spec.requeues and reason.code == "time-limit":
            requeue(dispatch, job, domain.LEAVE, reason)
        else:
            end(dispatch, job, domain.Change.FAIL, reason)
    elif cause in ("preempted", "user") and is_budget_used(dispatch.ledger, job):
        end(
            dispatch, job, domain.FINISH, domain.because("budget", f"{job.spec.budget_s:g}"), is_complete=True
        )
    elif cause in ("preempted", "user"):
        assert reason is not None
        if job.phase is domain.CHECKPOINTING:
            estimating.learn_pause(dispatch.ledger, job)
        _put_back(dispatch, job, reason)
    elif cause in ("lost", "crowded", "unsplit", "otherwise"):
        assert reason is not None
        requeue(dispatch, job, domain.Change.LEAVE, reason)
    elif cause == "faulted":
        _infra_failed(dispatch, job, _words_of(reason))
    elif outcome == "user-failed":
        _user_failed(dispatch, job, said)
    else:
        _infra_failed(dispatch, job, said)


def _words_of(reason: domain.Reason | None) -> Said:
    assert reason is not None
    return domain.render_whole(reason), domain.render(reason)


def _judge_again(dispatch: Dispatch, job: domain.Job) -> tuple[domain.Outcome, Said]:
    """How the whole attempt ended, and what is said of it, given how the job's last one failed."""
    verdict, before = job.attempt.verdict, job.failed_end
    assert verdict is not None
    said = verdict.said
    if verdict.outcome != "infra-failed" or job.attempt.stop_cause not in ("", "peer"):
        return verdict.outcome, said
    ran_s = dispatch.ledger.now_s - job.attempt.began_s
    end = domain.FailedEnd(rule=verdict.rule, exit_code=verdict.exit_code, ran_s=ran_s)
    dispatch.ledger.records.note_failed_end(job, end)
    if before is None or not before.is_repeated_by(end):
        return verdict.outcome, said
    twice = f"; twice in a row after about {ran_s:.0f} s, so it counts as the job's own"
    return "user-failed", (said[0] + twice, said[1] + twice)


def _finished(job: domain.Job) -> domain.Reason:
    """With what it could not write of its output."""
    verdict = job.attempt.verdict
    return (
        domain.because("finished-lost", verdict.detail)
        if verdict is not None and verdict.detail
        else FINISHED
    )


def _user_failed(dispatch: Dispatch, job: domain.Job, said: Said) -> None:
    if dispatch.ledger.records.count_failure(job, by_user=True) <= job.spec.retries:
        requeue(dispatch, job, domain.Change.LEAVE, domain.because("user-failed", *said))
    else:
        end(dispatch, job, domain.Change.FAIL, domain.because("user-failed", *said))


def _put_back(dispatch: Dispatch, job: domain.Job, reason: domain.Reason) -> None:
    """Back to the queue. A job whose own script puts it back at once would do so for ever: it waits longer
    each time, but not the first."""
    quick_s = dispatch.ledger.now_s - job.attempt.began_s
    is_own = reason == domain.because(REQUEUED, job.spec.user)
    times = dispatch.ledger.records.count_quick_requeue(job, is_quick=is_own and quick_s < QUICK_S)
    if times < 2:
        requeue(dispatch, job, domain.LEAVE, reason)
        return
    wait_s = min(QUICK_WAIT_S_MAX, dispatch.config.policy.back_off_s * 2.0 ** min(times - 2, 20))
    what = f"it was {reason}, {times} times in a row within {QUICK_S:.0f} s of its start"
    _back_off(dispatch, job, wait_s, (what, what))


def _back_off(dispatch: Dispatch, job: domain.Job, wait_s: float, said: Said) -> None:
    requeue(dispatch, job, domain.Change.LEAVE_BLOCKED, domain.because("back-off", wait_s, *said))
    dispatch.wake_at(dispatch.ledger.now_s + wait_s, "back-off", job.job_id, job.attempt.number)


def _infra_failed(dispatch: Dispatch, job: domain.Job, said: Said) -> None:
    policy = dispatch.config.policy
    if job.workdir_missing and why_impossible(dispatch.ledger, job) is not None:
        missing = domain.because("workdir-missing", job.spec.launch.workdir, ", ".join(job.workdir_missing))
        requeue(dispatch, job, domain.Change.LEAVE_HELD, missing)
        return
    failures = dispatch.ledger.records.count_failure(job, by_user=False)
    if failures > policy.infra_retries:
        requeue(dispatch, job, domain.Change.LEAVE_HELD, domain.because("held-infra", failures, *said))
        return
    _back_off(dispatch, job, policy.back_off_s * 2 ** (failures - 1), said)


def requeue(dispatch: Dispatch, job: domain.Job, change: domain.Change, reason: domain.Reason) -> None:
    """Wait again, from the last durable step."""
    step = job.durable_step
    dispatch.ledger.records.requeue(
        job, change, reason, step, estimating.remaining_from(dispatch.ledger, job, step)
    )
    if change is domain.LEAVE:
        dispatch.enqueue(job)
    if job.spec.array_limit:
        dispatch.fill_array(job)


def end(
    dispatch: Dispatch,
    job: domain.Job,
    change: domain.Change,
    reason: domain.Reason,
    *,
    is_complete: bool = False,
) -> None:
    dispatch.ledger.records.end(job, change, reason, is_complete=is_complete)
    end_job(dispatch, job)


def end_job(dispatch: Dispatch, job: domain.Job) -> None:
    """A job is over: its hosts may forget it; jobs that depend on it are released, or cancelled with all that
    depend on them (a list of work, since a chain can be longer than the stack is deep)."""
    ended = [job]
    for one in ended:
        job_id = one.spec.job_id
        dispatch.ledger.siblings.remove(one)
        dispatch.out += [
            domain.ForgetJob(
                command_id=dispatch.command_id(), host_id=host_id, job_id=job_id, job_epoch=one.epoch
            )
            for host_id in one.visited
        ]
        if one.spec.array_limit:
            dispatch.fill_array(one)
        waiting_on = dispatch.ledger.waiting_on
        for waiting_id in (
            sorted(waiting_on.pop(job_id), key=domain.natural_key) if job_id in waiting_on else ()
        ):
            waiting = dispatch.ledger.jobs.get(waiting_id)
            if waiting is not None and waiting.phase is domain.Phase.BLOCKED:
                dispatch.ledger.phases.change(
                    waiting, domain.Change.UNBLOCK, dispatch.submission_reason(waiting)
                )
                if not dispatch.queue_or_block(waiting):
                    ended.append(waiting)


PROBATION_S = 300.0
"""A suspect host is tried again with one attempt after this."""


def blame(dispatch: Dispatch, host: domain.Host, job: domain.Job) -> None:
    """An attempt failed on this host, and as far as is known the host is why."""
    by_itself = host.host_id in job.attempt.host_faults
    if host.host_id in job.avoid and not by_itself:
        return  # It failed here before and never got going since: that may be its own doing.
    host.failures_in_row += 1
    if len(host.failed_users) < 2 and job.spec.user not in host.failed_users:
        host.failed_users = (*host.failed_users, job.spec.user)
    host.failed_itself = host.failed_itself or by_itself
    dispatch.ledger.records.avoid(job, host.host_id)
    if host.is_suspect:
        host.reason = domain.because("suspect", host.host_id, host.failures_in_row)
        dispatch.ledger.refresh_host(host)
        dispatch.drop_reservations(host.host_id, host.reason)
        dispatch.wake_at(dispatch.ledger.now_s + PROBATION_S, "probation", host.host_id, 0)


def clear_suspicion(dispatch: Dispatch, host: domain.Host) -> None:
    """An attempt made its first step here, or finished, where others had failed."""
    acquit(host)
    host.reason = host.reason if host.lost else host_reason(host)
    dispatch.ledger.refresh_host(host)


def acquit(host: domain.Host) -> None:
    host.failures_in_row, host.failed_users, host.failed_itself = 0, (), False


def host_reason(host: domain.Host) -> domain.Reason | None:
    """Why a host that still reports gets no new work."""
    if host.drained_by:
        return domain.because("drained", host.host_id)
    if host.state is domain.HostState.SUSPECT:
        return domain.because("suspect", host.host_id, host.failures_in_row)
    return None


EVIDENCE: Final[dict[domain.GpuFaultRole, int]] = {"culprit": 2, "suspect": 1}


def take_in_fault(dispatch: Dispatch, job: domain.Job, event: ev.AttemptEnded) -> None:
    """Called before the job leaves its devices, while its co-tenants are still known."""
    if event.verdict.outcome != "infra-failed":
        return
    ledger = dispatch.ledger
    if job.attempt.stop_cause in ("", "peer"):
        ledger.records.blame_stop(job, "faulted", domain.because("gpu-fault", *event.verdict.said))
    evidence = EVIDENCE.get(event.gpu_fault, 0)
    ledger.records.suspect(job, evidence)
    for device_id in ledger.holdings.held_by(job, event.host_id):
        for other_id in ledger.holdings.tenants(device_id):
            other = ledger.jobs[other_id]
            if other is not job and event.gpu_fault != "device":
                struck = (job, other) if evidence else (other, job)
                key, until_s = ledger.pairs.note_fault(*struck, ledger.now_s)
                dispatch.wake_at(until_s, "reunite", key, 0)
