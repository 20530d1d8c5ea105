"""What comes by itself: reports of hosts about attempts (start, first step, progress, checkpoints, end,
measurements), and alarms that ring. Rule: a report about any attempt but the present one changes nothing.
"""

from __future__ import annotations

import heapq
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.events import claims
from cotenant.controller.engine.events.ending import clear_suspicion, end_job, left_host, take_in_fault
from cotenant.controller.engine.events.hosts import leave_if_due
from cotenant.controller.engine.stages.fair_share import decayed_usage
from cotenant.controller.engine.state import estimating
from cotenant.controller.engine.state.counting import is_loading
from cotenant.controller.engine.state.dispatch import Alarm, Dispatch, hosts_of, is_need_unknown
from cotenant.controller.engine.state.ledger import DecayedUsage, Ledger
from cotenant.controller.performance import SCHEDULE_VARIABLE, Profile, fitting

SETTLED_S: Final = 0.001
"""A time limit that is further away than rounding explains is not the one that the alarm was set for."""


def on_started(dispatch: Dispatch, event: ev.AttemptStarted) -> None:
    """The attempt's processes run on one host."""
    job = dispatch.current(event.job_id, event.attempt)
    if (
        job is not None
        and event.host_id in job.attempt.hosts_left
        and event.host_id not in job.attempt.started_hosts
    ):
        dispatch.ledger.records.started_on(job, event.host_id, event.launch)
        dispatch.send_limit(job, event.host_id)


def on_capabilities(dispatch: Dispatch, event: ev.CapabilitiesSeen) -> None:
    """What the job can do, and the step it found."""
    job = dispatch.current(event.job_id, event.attempt)
    if job is None or event.host_id not in job.attempt.hosts_left:
        return
    ledger = dispatch.ledger
    is_known = event.resumable and not job.progress.went_otherwise
    can = is_known and job.spec.resumable is not False and len(_domains(dispatch, job)) <= 1
    if not can:
        ledger.records.cannot_resume(job)
    elif event.host_id not in job.attempt.capable:
        capable = (*job.attempt.capable, event.host_id)
        ledger.records.can_resume(job, capable, everywhere=set(capable) >= set(hosts_of(ledger, job)))
    ledger.records.learn_capabilities(job, event.capabilities)
    proven = event.capabilities.proven
    if proven and ledger.records.prove_resume(job, event.step, proven):
        ledger.resumes.note(job, is_proven=True)
    if (
        job.phase is domain.Phase.LOADING and event.step != job.progress.step
    ):  # Not the step we thought it would find.
        ledger.records.resumed_at(job, event.step, estimating.remaining_from(ledger, job, event.step))


def _domains(dispatch: Dispatch, job: domain.Job) -> set[str]:
    """The checkpoint domains a gang writes to; over more than one it cannot resume."""
    hosts = hosts_of(dispatch.ledger, job)
    return {dispatch.ledger.hosts[host_id].checkpoint_domain for host_id in hosts}


def on_first_step(dispatch: Dispatch, event: ev.FirstStepDone) -> None:
    """The job has loaded and trains from now on. If the host only assumes so, the engine learns nothing from
    it and forgives no failure: a script may import for minutes, and fail in that. Should the job's own report
    follow, all its time until then was its load."""
    job = dispatch.current(event.job_id, event.attempt)
    if job is None:
        return
    ledger, is_loading = dispatch.ledger, job.phase is domain.LOADING
    if not is_loading and (
        event.assumed or job.phase is not domain.RUNNING or job.attempt.start_assumed_s is None
    ):
        return
    load_s = ledger.now_s - job.phase_since_s if is_loading else ledger.records.loaded_longer(job)
    if not event.assumed:
        if job.counts.infra_failures or job.avoid:
            ledger.records.forgive(job)
        for host_id in job.attempt.hosts_left:
            host = ledger.hosts[host_id]
            if host.failures_in_row:
                clear_suspicion(dispatch, host)
        if job.spec.load_s is None:
            estimating.learn_load(ledger, job, load_s)
    ledger.records.first_step(job, event.step, assumed=event.assumed)
    if is_loading:
        ledger.siblings.begin(job)
        _judge(dispatch, job)
    else:  # Nothing of it was done while it loaded.
        ledger.records.expect(job, estimating.remaining_from(ledger, job, job.attempt.start_step))


def _judge(dispatch: Dispatch, job: domain.Job) -> None:
    """A job of unknown length is judged by what it has had, and again when that has grown."""
    again_s = estimating.judge_again(dispatch.ledger, job)
    if again_s is not None:
        dispatch.wake_at(dispatch.ledger.now_s + again_s, "judge", job.job_id, job.attempt.number)


def on_progress(dispatch: Dispatch, event: ev.ProgressSeen) -> None:
    """A later step, and perhaps how long one takes."""
    job = dispatch.current(event.job_id, event.attempt)
    if job is None or event.step < job.progress.step:
        return
    if job.budget is not None and event.step == job.progress.step:  # It has not trained since.
        still = job.budget.pass_time(dispatch.ledger.now_s, job.budget.slowdown).forget_time()
        dispatch.ledger.records.note_training(job, still)
    estimating.learn_progress(dispatch.ledger, job, event)
    estimating.observe_sharing(dispatch.ledger, job)


def on_idle(dispatch: Dispatch, event: ev.IdleSeen) -> None:
    """A job holds its devices idle, or works again. That others may have them meanwhile, and leave again, is
    `stages/lending.py`."""
    ledger, job = dispatch.ledger, dispatch.current(event.job_id, event.attempt)
    if job is None:
        return
    if event.since_s is None or not event.stage:
        ledger.records.idle(job, None)
        return
    spell = domain.IdleSpell(
        since_s=event.since_s,
        stage=event.stage,
        told_s=ledger.now_s,
        lends=event.stage == "share" or job.lends,
    )
    ledger.records.idle(job, spell)
    if event.stage == "stop" and job.phase is domain.Phase.RUNNING:
        dispatch.stop(job, "idle", domain.idle_reason("stop", ledger.now_s - event.since_s), save=True)


def on_trouble(dispatch: Dispatch, event: ev.TroubleSeen) -> None:
    """Changes nothing in the engine: the job's history keeps the trouble, for the user."""


def on_output_seen(dispatch: Dispatch, event: ev.OutputSeen) -> None:
    """Changes nothing in the engine: the job's history keeps what was told."""


def on_bound_lost(dispatch: Dispatch, event: ev.BoundLost) -> None:
    """The bound of a job cannot be kept beside a co-tenant: the pair is not made again, and the co-tenant
    leaves if it can resume."""
    job, partner = dispatch.current(event.job_id, event.attempt), dispatch.ledger.jobs.get(event.partner)
    if job is None or partner is None or partner.job_id not in dispatch.ledger.holdings.partners(job):
        return
    dispatch.ledger.pairs.note_not_held(job, partner)
    if partner.phase is domain.Phase.RUNNING and partner.preemptible:
        bound = dispatch.ledger.pairs.bound_of(job)
        reason = domain.because("parted-bound", job.job_id, event.ratio, bound.max)
        dispatch.stop(partner, "preempted", reason, save=True)


def on_durable(dispatch: Dispatch, event: ev.CheckpointDurable) -> None:
    """A checkpoint is durable: the job can go on from it."""
    job = dispatch.ledger.jobs.get(event.job_id)
    host = dispatch.ledger.hosts.get(event.host_id)
    if job is None or host is None or job.attempt.number != event.attempt or job.phase in domain.ENDED:
        return
    if job.progress.went_otherwise:
        return
    # Nobody could put the parts of a gang over several domains together: they bind it to no host.
    if job.phase is domain.Phase.RESERVED or (
        len(_domains(dispatch, job)) > 1 if job.phase in domain.ON_DEVICES else not job.progress.resumable
    ):
        return
    record = domain.CheckpointRecord(
        attempt=event.attempt, step=event.step, domain=host.checkpoint_domain, exact=event.exact
    )
    if record in job.progress.checkpoints:
        return
    # Also a late report of a host that was given up: the job still waits, and can go on from there.
    before = job.progress.step
    dispatch.ledger.records.note_checkpoint(job, record)
    if job.progress.step != before:
        dispatch.ledger.records.expect(
            job, estimating.remaining_from(dispatch.ledger, job, job.progress.step)
        )


def on_ended(dispatch: Dispatch, event: ev.AttemptEnded) -> None:
    """All processes of the attempt on one host are gone."""
    job = dispatch.current(event.job_id, event.attempt)
    if job is None or event.host_id not in job.attempt.hosts_left:
        known = dispatch.ledger.jobs.get(event.job_id)
        if known is not None and known.phase not in domain.ENDED:
            dispatch.ledger.records.was_on(known, event.host_id)
        if known is not None and event.host_id in known.strays:
            claims.stray_gone(dispatch, known, event.host_id)
        return
    dispatch.ledger.records.last_words(job, event)
    verdict = event.verdict
    failed = verdict.outcome == "user-failed" and not job.attempt.stop_cause
    if failed and (verdict.out_of_memory or (verdict.is_over_host_limit and is_need_unknown(job))):
        crowded_out = estimating.blame_memory(dispatch.ledger, job)
        if crowded_out is not None:
            dispatch.ledger.records.blame_stop(job, "crowded", crowded_out)
    is_by_itself = job.attempt.stop_cause in ("", "peer")
    refusal = verdict.refusal
    if refusal == "split" and is_by_itself:
        _go_on_whole(dispatch.ledger, job, verdict.detail)
    elif refusal == "resume":
        if dispatch.ledger.records.went_otherwise(job, verdict.detail):
            dispatch.ledger.resumes.note(job, is_proven=False)
        if is_by_itself:
            reason = domain.because("otherwise", verdict.detail, job.durable_step)
            dispatch.ledger.records.blame_stop(job, "otherwise", reason)
    if event.gpu_fault:
        take_in_fault(dispatch, job, event)
    if job.attempt.epoch != dispatch.ledger.epoch.token:
        _note_lateness(dispatch, job, event)
    left_host(dispatch, job, event.host_id, verdict)
    if job.phase is domain.Phase.QUEUED and job.reason.code == "unsplit" and _visits_parts(job):
        _stay_whole(dispatch.ledger, job)


def _note_lateness(dispatch: Dispatch, job: domain.Job, event: ev.AttemptEnded) -> None:
    """A controller has started since the attempt was launched, so its end may have been while none ran: what
    it held until then counts, and not until the journal knows of it. Of a gang the last end counts."""
    ledger, attempt = dispatch.ledger, job.attempt
    late_s = min(event.ago_s, ledger.now_s - attempt.began_s)
    ledger.records.note_lateness(job, late_s if attempt.verdict is None else min(late_s, attempt.late_s))
    charged = job.spec.user if dispatch.config.policy.fair_share_by == "user" else job.spec.organisation
    account = ledger.accounts.get(charged)
    if late_s > 0.0 and account is not None and job.placement is not None:
        held = [ledger.holdings.tenants(each) for each in ledger.holdings.held_by(job, event.host_id)]
        part = job.placement.fraction
        devices = part * len(held) if part < 1.0 else sum(1.0 / max(1, len(each)) for each in held)
        half_life_s, now_s = dispatch.config.policy.fair_share_half_life_s, ledger.now_s
        too_much = DecayedUsage(device_s=0.0, at_s=now_s - late_s, devices=devices)
        used_s, less_s = (decayed_usage(each, half_life_s, now_s) for each in (account, too_much))
        ledger.accounts[charged] = msgspec.structs.replace(account, device_s=used_s - less_s, at_s=now_s)


def _go_on_whole(ledger: Ledger, job: domain.Job, detail: str) -> None:
    """Where a batch was split that the script did not split itself, and that was refused, the job and its
    like get whole ones from now on."""
    is_split = job.placement is not None and job.placement.accumulation_steps > 1
    if not (is_split or _visits_parts(job)):
        return
    before = job.measured.profile or Profile()
    whole = msgspec.structs.replace(before, accumulates=False)
    ledger.profiles.revise(before, whole)
    ledger.records.refine_profile(job, whole)
    ledger.records.blame_stop(job, "unsplit", domain.because("unsplit", detail))


def _visits_parts(job: domain.Job) -> bool:
    """Whether it is there to be measured, with its batch in parts as well."""
    return job.spec.profiling == "only" and SCHEDULE_VARIABLE in job.spec.launch.env


def _stay_whole(ledger: Ledger, job: domain.Job) -> None:
    """The next attempt of a job that is there to be measured has whole batches alone."""
    launch = job.spec.launch
    env = {name: value for name, value in launch.env.items() if name != SCHEDULE_VARIABLE}
    launch = msgspec.structs.replace(launch, env=env)
    ledger.records.respecify(job, msgspec.structs.replace(job.spec, launch=launch))


def on_profile(dispatch: Dispatch, event: ev.ProfileLearned) -> None:
    job = dispatch.ledger.jobs.get(event.job_id)
    if job is None:
        return
    estimating.learn_profile(dispatch.ledger, job, event)
    _ask_for_law(dispatch, job)
    current = event.attempt in (None, job.attempt.number) and job.phase in (domain.LOADING, domain.RUNNING)
    if current and event.is_complete and job.spec.profiling == "only":
        dispatch.stop(job, "profiled", domain.because("profiled"), save=False)


def on_forgotten(dispatch: Dispatch, event: ev.ProfilesForgotten) -> None:
    """Somebody wants jobs of this kind to be measured anew."""
    dispatch.ledger.profiles.forget(event.keys)


def _ask_for_law(dispatch: Dispatch, job: domain.Job) -> None:
    """Requests a fit of the throughput model of its profile, if there is enough data."""
    if job.measured.profile is None or job.measured.profile.throughput is not None or job.batch_size is None:
        return
    payload = fitting.question(job.measured.profile, job.batch_size, job.gang)
    if payload is None:
        return
    number = dispatch.command_id()
    # Policies count their own requests upwards from 1.
    request = domain.ComputeRequest(
        command_id=number, request_id=-number, kind=fitting.KIND, payload=payload, job_id=job.job_id
    )
    dispatch.out.append(request)


def on_pair(dispatch: Dispatch, event: ev.PairObserved) -> None:
    """Two jobs were measured beside each other."""
    first, second = dispatch.ledger.jobs.get(event.first), dispatch.ledger.jobs.get(event.second)
    if first is not None and second is not None:
        dispatch.ledger.pairs.observe(first, second, event.first_xi)
        dispatch.ledger.pairs.observe(second, first, event.second_xi)


def on_etas_told(dispatch: Dispatch, event: ev.EtasTold) -> None:
    """Changes nothing in the engine: the `EtaBook` keeps the predicted ends, to compare them with the
    ends."""


def on_computed(dispatch: Dispatch, event: ev.Computed) -> None:
    """A policy sees the answer to its own request itself; one about a job's profile is kept with it."""
    job = dispatch.ledger.jobs.get(event.job_id) if event.job_id is not None else None
    law = fitting.model_of(event.values)
    if (
        job is None
        or job.measured.profile is None
        or law is None
        or law.steps != len(job.measured.profile.points)
    ):
        return
    profile = msgspec.structs.replace(job.measured.profile, throughput=law)
    dispatch.ledger.profiles.revise(job.measured.profile, profile)
    dispatch.ledger.records.refine_profile(job, profile)


def on_alarm(dispatch: Dispatch, event: ev.AlarmRang) -> None:
    """Rings all alarms that are due, in the order of their times."""
    while dispatch.alarms and dispatch.alarms[0].at_s <= dispatch.ledger.now_s:
        _ring(dispatch, heapq.heappop(dispatch.alarms))


def _ring(dispatch: Dispatch, alarm: Alarm) -> None:
    if alarm.kind == "probation":
        host = dispatch.ledger.hosts.get(domain.HostId(alarm.subject))
        if host is not None and host.is_suspect:
            host.begin_probation()
            dispatch.ledger.refresh_host(host)
        return
    if alarm.kind == "leave":
        leave_if_due(dispatch, domain.HostId(alarm.subject))
        return
    if alarm.kind in ("promise", "turn", "booking", "budget"):
        return  # A stage looks after each event.
    if alarm.kind == "reunite":
        dispatch.ledger.pairs.reunite(alarm.subject, dispatch.ledger.now_s)
        return
    job = dispatch.ledger.jobs.get(domain.JobId(alarm.subject))
    if job is None or job.attempt.number != alarm.attempt:
        return
    if alarm.kind == "deadline" and job.phase is domain.Phase.CHECKPOINTING:
        waited_s = dispatch.config.policy.stop_deadline_s
        cause = job.attempt.stop_cause
        dispatch.stop(
            job, cause, domain.because("checkpoint-deadline", waited_s, job.durable_step), save=False
        )
    elif alarm.kind == "limit" and job.phase in (domain.Phase.LOADING, domain.Phase.RUNNING):
        left_s = job.limit_left_s(dispatch.ledger.now_s)
        if left_s is None or left_s > SETTLED_S:
            return  # It was changed since; the new one has an alarm of its own.
        limit_s, in_vain = job.spec.time_limit_s or 0.0, job.spec.requeues and is_loading(job)
        reason = (
            domain.because("time-limit-loading", limit_s)
            if in_vain
            else domain.because("time-limit", limit_s)
        )
        dispatch.stop(job, "time-limit", reason, save=True)
    elif alarm.kind == "judge":
        _judge(dispatch, job)
    elif alarm.kind == "back-off" and job.phase is domain.Phase.BLOCKED:
        dispatch.ledger.phases.change(job, domain.Change.UNBLOCK, job.reason)
        if not dispatch.queue_or_block(job):
            end_job(dispatch, job)
    elif (
        alarm.kind == "age" and job.phase is domain.Phase.QUEUED and not job.aged and not dispatch.takes_turns
    ):
        dispatch.ledger.records.age(job, domain.because("aged", dispatch.config.policy.ageing_s))
