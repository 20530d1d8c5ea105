"""From the engine's state to what users see. Pure: reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from cotenant.controller import domain
from cotenant.controller.api.attempts_shown import attempt_views, s_used, sub_batch_at
from cotenant.controller.api.moment import Now
from cotenant.controller.engine import Engine, memory_cap_mib
from cotenant.controller.history import ALWAYS_S, AttemptRecord, HistoryNote, JobRecord, accounts
from cotenant.controller.performance import INDICATOR_NAMES, SpeedCurve
from cotenant.controller.planning import held_part, why_alone
from cotenant.controller.wire import (
    AttemptProgress,
    PromiseView,
    SharingView,
    profile_view,
    throughput_view,
)
from cotenant.controller.wire import clients as wire

Telemetry = Mapping[domain.JobId, AttemptProgress]


SPEEDUPS_SHOWN: Final = 64
"""Numbers of devices of one job."""


def job_view(
    engine: Engine,
    telemetry: Telemetry,
    record: JobRecord,
    now: Now,
    reason: domain.Reason | None = None,
    shared: tuple[SharingView, ...] = (),
    promises: tuple[PromiseView, ...] = (),
    eta: wire.EtaView | None = None,
    *,
    whole: bool,
) -> wire.JobView:
    """The view of one job now. `reason`: the present one. `whole`: as who may read its log sees it."""
    job, attempts = record.job, record.attempts
    spec, placed, ended = job.spec, job.phase in domain.ON_DEVICES, job.ended_s is not None
    wait_s, load_s, run_s, pause_s = job.times(now.now_s)
    news = telemetry.get(job.job_id)
    current = news if news is not None and placed and news.attempt == job.attempt.number else None
    length = current.length if current else domain.SeenLength(steps=job.progress.total_steps)
    batch = current.batch if current and current.batch.note else job.measured.batch
    newest = attempts[-1] if attempts else None
    shown = reason if reason is not None else job.reason
    held, said = job.placement, said_of(job, shown, now, whole=whole)
    steps = s_used(newest)[-1] if newest and (placed or not held) else held.accumulation_steps if held else 1
    can, metrics = job.progress.capabilities, metrics_of(attempts)
    return wire.JobRow(
        **_fields_asked_for(spec, now),
        job_id=job.job_id, phase=job.phase, reason=said.text, reason_code=shown.code, reason_jobs=said.jobs,
        guaranteed_h=engine.promised_h if spec.job_class == "spot" else None,
        broken_promises=job.counts.early_preemptions if engine.promised_h is not None else 0,
        gpus=len(held.devices) if held else spec.gpus_min,
        gpu_fraction=held.fraction if held else spec.gpu_fraction, resizes=job.counts.resizes,
        speedups=() if job.measured.curve is None else _speedups(spec, job.measured.curve),
        speedups_source=None if job.measured.curve is None else job.measured.curve.source,
        devices=devices_shown(job, newest), attempt=job.attempt.number,
        co_tenants=engine.partners(job.job_id) if placed else (), co_tenants_ever=job.co_tenants,
        sub_batch=sub_batch_at(steps, job, held or newest), durable_step=job.durable_step,
        accumulation_steps=steps,
        accumulation_steps_ever=tuple(dict.fromkeys(s for each in attempts for s in s_used(each))),
        start_assumed=job.attempt.start_assumed_s is not None, total_steps=length.steps,
        total_note=length.note or None, step=max(job.progress.step, current.step if current else 0),
        batch_rows=batch.rows if spec.batch_size is None else spec.batch_size,
        batch_note=(batch.note or None) if spec.batch_size is None else None,
        step_s=current.step_s if current and current.step_s is not None else job.attempt.step_s,
        loss=next((each.value for each in metrics if each.name == "loss"), news.loss if news else None),
        metrics=metrics, link=link_of(spec, attempts),
        output_lost=next((each.words.lost for each in reversed(attempts) if each.words.lost), None),
        accumulates=can.accumulates, accumulates_note=can.accumulates_note or None,
        exit_code=job.attempt.exit_code, wait_s=wait_s, load_s=load_s, run_s=run_s, pause_s=pause_s,
        futile_s=job.spent.futile_s, expected_load_s=None if ended else job.estimate.load_s,
        expected_pause_s=None if ended else job.estimate.pause_s,
        shared=shared, promises=promises,
        won_device_s=total_won_device_s(shared), eta=eta, promised=promised_end(engine, job, now),
        bound=share_bound(engine, job, current), pace=current.pace if current else None,
        idle=idle_view(job, current, now) if placed else None, trained_s=job.trained_s(now.now_s),
        **_left_fields(job, now), **_counts_and_moments(job, now), **_resume_fields(engine, job),
        **_energy_fields(attempts, current, now),
    )  # fmt: skip


def _left_fields(job: domain.Job, now: Now) -> dict[str, Any]:
    """The view's fields of how long it still trains."""
    left = None if job.ended_s is not None else job.length_left(now.now_s)
    if left is None:
        return {
            "left_s": None,
            "left_source": None if job.ended_s is not None else job.estimate.source or None,
        }
    told = wire.LeftView(**msgspec.structs.asdict(left), is_guess=left.is_guess)
    return {"left_s": None if left.is_guess else left.likely_s, "left_source": left.source, "left": told}


def _counts_and_moments(job: domain.Job, now: Now) -> dict[str, Any]:
    """The view's fields of how often it had to leave, and when it came, began and ended."""
    return {
        "preemptions": job.counts.preemptions,
        "futile_preemptions": job.counts.futile_preemptions,
        "aborted_preemptions": job.counts.aborted_preemptions,
        "submitted_at": now.utc(job.submitted_s),
        "started_at": now.utc_if(job.first_start_s),
        "ended_at": now.utc_if(job.ended_s),
    }


def _fields_asked_for(spec: domain.JobSpec, now: Now) -> dict[str, Any]:
    """The view's fields of what was asked for."""
    return {
        "name": spec.name,
        "user": spec.user,
        "organisation": spec.organisation or None,
        "job_class": spec.job_class,
        "priority": spec.priority,
        "share": spec.share,
        "gpus_range": (spec.gpus_min, spec.gpus_max) if spec.is_elastic else None,
        "iterations": spec.iterations,
        "budget_s": spec.budget_s,
        "begin_at": now.utc_if(spec.begin_s),
        "time_limit_s": spec.time_limit_s,
        "parameters": dict(spec.parameters),
    }


def _resume_fields(engine: Engine, job: domain.Job) -> dict[str, Any]:
    """The view's fields of whether it resumes, and what jobs of its kind have shown of that."""
    of_kind = engine.ledger.resumes.counts(job)
    return {
        "resumable": job.progress.resumable,
        "resumable_note": job.resumable_note or None,
        "resume_proof": of_kind.proof,
        "resumes_proven": of_kind.proven,
    }


def _energy_fields(
    attempts: Sequence[AttemptRecord], current: AttemptProgress | None, now: Now
) -> dict[str, Any]:
    """The view's fields of what its attempts have used; of one that runs on one host, as its agent says
    now."""
    if current is not None and current.energy_j is not None and len(set(attempts[-1].hosts)) == 1:
        newest = msgspec.structs.replace(
            attempts[-1], energy_by_host_j={attempts[-1].hosts[0]: current.energy_j}
        )
        attempts = (*attempts[:-1], newest)
    kwh, unknown = accounts.energy_by(attempts, ALWAYS_S, now.now_s)
    return {
        "energy_kwh": kwh if unknown < len(attempts) else None,
        "energy_unknown_attempts": unknown,
    }


def metrics_of(attempts: Sequence[AttemptRecord]) -> tuple[domain.JobMetric, ...]:
    """The job's last metrics, of the newest attempt that has told any."""
    return next((each.words.metrics for each in reversed(attempts) if each.words.metrics), ())


def link_of(spec: domain.JobSpec, attempts: Sequence[AttemptRecord]) -> str | None:
    """The job's page elsewhere: as its user says, else as it printed last; None: there is none."""
    printed = next((each.words.link for each in reversed(attempts) if domain.is_link(each.words.link)), None)
    return spec.link.replace("{job}", spec.job_id) or printed


def said_of(job: domain.Job, reason: domain.Reason, now: Now, *, whole: bool, before: str = "") -> SaidLine:
    """The sentence of a reason, behind the words `before` it; one that names a time of the journal names it
    by the wall clock."""
    if reason.code == "begins-later" and job.spec.begin_s is not None:
        at = now.utc(job.spec.begin_s)[:16].replace("T", " ")
        return SaidLine(f"{before}does not start before {at} UTC (--begin)")
    text, jobs = domain.render_with_jobs(reason, whole=whole)
    add = len(before)
    return SaidLine(before + text, tuple((at + add, end + add) for at, end in jobs) if add else jobs)


def words_of(reason: domain.Reason, *, whole: bool) -> str:
    return domain.render_whole(reason) if whole else domain.render(reason)


class SaidLine(NamedTuple):
    """A line, and where it names jobs."""

    text: str
    jobs: wire.Mentions = ()

    @classmethod
    def make(cls, reason: domain.Reason, line: str, *, whole: bool) -> SaidLine:
        """A line that ends with the sentence of a reason: for its owner (`whole`), or for everybody."""
        before = len(line) - len(words_of(reason, whole=whole))
        found = domain.mentions(reason, whole=whole)
        return cls(line, tuple((at + before, end + before) for at, end in found))


def share_bound(
    engine: Engine, job: domain.Job, current: AttemptProgress | None
) -> wire.ShareBoundView | None:
    """What sharing may cost the job; how it stands only while its agent tells so."""
    bound = engine.ledger.pairs.bound_of(job)
    if bound.max == inf or job.phase in domain.ENDED:
        return None
    standing = current.bound if current is not None else None
    if standing is None:
        return wire.ShareBoundView(max=bound.max, is_own=bound.is_own)
    return wire.ShareBoundView(
        max=bound.max,
        is_own=bound.is_own,
        ratio_p50=standing.ratio_p50,
        ratio_p99=standing.ratio_p99,
        alone_step_s=standing.alone_step_s,
        guest_pace=standing.guest_pace,
        guests_in_phase=standing.guests_in_phase,
    )


def idle_view(job: domain.Job, current: AttemptProgress | None, now: Now) -> wire.IdleView:
    """Since when the job is idle, what was done about it, and what is to be done."""
    spell, heard = job.attempt.idle, current.idle_for if current is not None else None
    return wire.IdleView(
        rule=job.spec.idle or "none",
        since_at=None if spell is None else now.utc(spell.since_s),
        stage="" if spell is None else spell.stage,
        idle_s=None if heard is None else heard.idle_s,
    )


def promised_end(engine: Engine, job: domain.Job, now: Now) -> wire.PromisedEndView | None:
    if not job.promise or job.spec.promised_s is None:
        return None
    promise = engine.promises.saved.open.get(job.job_id)
    kept = promise.kept if promise is not None else None
    return wire.PromisedEndView(
        by_at=now.utc(job.spec.promised_s),
        state=job.promise,
        why=None if job.promise_why is None else domain.render(job.promise_why),
        devices=() if kept is None else kept.devices,
        from_at=None if kept is None else now.utc(max(now.now_s, kept.from_s)),
    )


def _speedups(spec: domain.JobSpec, curve: SpeedCurve) -> tuple[wire.SpeedupView, ...]:
    sizes = islice(filter(spec.takes, range(spec.gpus_min, spec.gpus_max + 1)), SPEEDUPS_SHOWN)
    return tuple(wire.SpeedupView(gpus=n, speedup=curve.speedup(n, spec.gpus_min)) for n in sizes)


def total_won_device_s(shared: Sequence[SharingView]) -> float | None:
    """A job's part of what sharing won, as far as it is known; None: nothing is known."""
    known = [row.won_device_s for row in shared if row.won_device_s is not None]
    return sum(known) if known else None


def job_details(view: wire.JobView, record: JobRecord, now: Now, *, whole: bool) -> wire.JobDetails:
    """The details of one job. `whole`: for a reader of its log."""
    job, profile = record.job, record.job.measured.profile
    return wire.JobDetails(
        **msgspec.structs.asdict(view),
        spec=wire.spec_view(job.spec),
        attempts=attempt_views(record.attempts, now, whole=whole),
        profile=None if profile is None else profile_view(profile),
        profile_given=job.measured.profile_given,
        throughput=throughput_view(profile, job.batch_size, job.spec.gang),
    )


def copies_shown(engine: Engine, record: JobRecord) -> tuple[str, ...]:
    """Where the newest attempt's hosts have the job's copies of its snapshot."""
    job = record.job
    if job.spec.launch.snapshot is None or not record.attempts:
        return ()
    name = "-".join(filter(None, (job.job_id, job.epoch)))
    hosts = (engine.hosts.get(each) for each in dict.fromkeys(record.attempts[-1].hosts))
    reports = [host.report for host in hosts if host is not None]
    return tuple(f"{each.host_id}:{each.copies}/{name}" for each in reports if each.copies)


def devices_shown(job: domain.Job, newest: AttemptRecord | None) -> tuple[str, ...]:
    """Where it is, or where it was when it ended."""
    if job.placement is not None:
        return job.placement.devices
    return newest.devices if newest is not None and job.phase in domain.ENDED else ()


def node_view(
    engine: Engine,
    host: domain.Host,
    heartbeat_age_s: float | None,
    readings: Mapping[domain.DeviceId, domain.DeviceReading] | None = None,
    fork_servers: domain.ForkServers | None = None,
    reserved: Mapping[domain.DeviceId, wire.ReservedView] | None = None,
) -> wire.NodeView:
    """The view of one host. `readings`, `reserved`: those of any devices."""
    report, known, asking = host.report, readings or {}, engine.ledger.holdings.asking_on(host.host_id)
    for_whom = reserved or {}
    return wire.NodeView(
        host=report.host_id,
        state=host.state,
        reason=domain.render(host.reason)
        if host.reason is not None and host.state is not domain.HostState.OK
        else "",
        heartbeat_age_s=heartbeat_age_s,
        version=report.version,
        address=report.address,
        cpus=report.cpus,
        memory_mib=report.memory_mib,
        features=report.features,
        container_note=report.container_note,
        checkpoint_domain=report.checkpoint_domain,
        cpus_asked=sum(job.spec.cpus for job in asking),
        memory_asked_mib=sum(job.spec.host_memory_mib for job in asking),
        fork_servers=fork_servers,
        devices=tuple(
            device_view(engine, each, known.get(each.device_id), for_whom.get(each.device_id))
            for each in report.devices
        ),
    )


def reserved_devices(engine: Engine, now: Now) -> dict[domain.DeviceId, wire.ReservedView]:
    """For whom devices are reserved now or next."""
    found: dict[domain.DeviceId, wire.ReservedView] = {}
    for each in sorted(engine.ledger.bookings.open.values(), key=lambda each: (each.from_s, each.number)):
        for device_id in each.devices:
            view = wire.ReservedView(
                reservation_id=each.booking_id,
                user=each.user,
                from_at=now.utc(each.from_s),
                until_at=now.utc(each.until_s),
                is_now=device_id in each.own,
                is_lent=device_id in each.lent,
            )
            found.setdefault(device_id, view)
    return found


def device_view(
    engine: Engine,
    device: domain.Device,
    reading: domain.DeviceReading | None,
    reserved: wire.ReservedView | None,
) -> wire.DeviceView:
    jobs = engine.tenants(device.device_id)
    parts = [held_part(engine.jobs[job_id]) for job_id in jobs]
    planned = tuple(planned_mib(engine, device.device_id, job_id) for job_id in jobs)
    return wire.DeviceView(
        device_id=device.device_id,
        kind=device.kind,
        type=device.type,
        memory_mib=device.memory_mib,
        reserve_mib=device.reserve_mib,
        planned_mib=sum(planned),
        max_tenants=device.max_tenants,
        sharing=device.sharing,
        sharing_note=device.sharing_note,
        cores=device.cores,
        state=device.state,
        healthy=device.healthy,
        note=device.note,
        reading=None if reading is None else reading_view(reading),
        jobs=jobs,
        idle_jobs=tuple(job_id for job_id in jobs if engine.jobs[job_id].attempt.idle is not None),
        parts=tuple(part.fraction for part in parts) if any(p.fraction < 1.0 for p in parts) else (),
        jobs_planned_mib=planned,
        reserved=reserved,
        parent=device.parent,
    )


def reading_view(reading: domain.DeviceReading) -> wire.ReadingView:
    return wire.ReadingView(
        source=reading.source or None,
        age_s=reading.age_s,
        quiet_s=reading.quiet_s,
        lasted_s=reading.lasted_s,
        memory_used_mib=reading.memory_used_mib,
        values={name: reading.values.get(name) for name in INDICATOR_NAMES},
        note=reading.why,
    )


def planned_mib(engine: Engine, device_id: domain.DeviceId, job_id: domain.JobId) -> int:
    """A tenant's planned memory; one with an unknown need has the whole device."""
    placement = engine.jobs[job_id].placement
    planned = placement.memory_mib if placement is not None else None
    return engine.ledger.devices[device_id].usable_mib if planned is None else planned


def measured_beside(job: wire.JobView) -> list[domain.Reason]:
    """What sharing costs a job on devices, where it was measured beside those who are there now."""
    row = next((row for row in reversed(job.shared) if set(row.beside) == set(job.co_tenants)), None)
    if job.phase not in domain.ON_DEVICES or not job.co_tenants or row is None or not row.alone_s:
        return []
    others = " and ".join(f"job {each}" for each in job.co_tenants)
    return [domain.because("holds-beside-measured", others, row.measured_s / row.alone_s)]


def sharing_reasons(engine: Engine, job: domain.Job) -> list[domain.Reason]:
    """How the GPUs that a job runs on are shared: said once for all that are shared alike."""
    if job.placement is None or job.phase not in domain.ON_DEVICES:
        return []
    wanted = set(job.placement.devices)
    found: dict[str, domain.Reason] = {}
    for host in engine.hosts.values():
        for device in host.report.devices:
            if device.device_id not in wanted or device.kind != "cuda":
                continue
            if device.parent:
                found["mig"] = domain.because("alone-on-mig", device.device_id, device.sharing_note)
            elif device.sharing == "time-slicing":
                why = device.sharing_note or "its agent does not say why"
                found.setdefault(why, domain.because("co-tenants-take-turns", device.device_id, why))
            else:
                if device.sharing_note:  # Also alone: it may be held to a part of the device.
                    noted = domain.because("co-tenants-by-mps-noted", device.device_id, device.sharing_note)
                    found.setdefault(device.sharing_note, noted)
                elif len(engine.tenants(device.device_id)) > 1:
                    found.setdefault("mps", domain.because("co-tenants-by-mps", device.device_id))
            found.setdefault("limit", _limit(engine, job, device))
    return list(found.values())


def _limit(engine: Engine, job: domain.Job, device: domain.Device) -> domain.Reason:
    """Who holds the job to its part of a GPU, or why nobody does."""
    placement = job.placement
    assert placement is not None
    limit_mib = memory_cap_mib(job)
    if limit_mib is not None and device.limits_jobs:
        return domain.because("kernel-limit", limit_mib)
    if limit_mib is not None and device.sharing == "mps":
        return domain.because("mps-limit", limit_mib)
    if limit_mib is not None:
        return domain.because("torch-limit", limit_mib)
    if placement.memory_mib is None:
        why = "how much it needs is unknown, and no job shares its devices before that is known"
    elif device.max_tenants < 2:
        why = "the device takes one job"
    elif len(engine.tenants(device.device_id)) > 1:
        why = "it started alone; while others are there our library in it keeps it to what they leave"
    elif (alone := why_alone(job)) is not None:
        why = domain.render(alone)
    else:
        why = "it was started under a policy that does not share"
    return domain.because("no-memory-limit", why)


def note_text(note: HistoryNote, *, whole: bool) -> str:
    """The text of a note, such as `attempt 1 failed: exit code 3`: without repeating what an outcome and its
    reason have in common."""
    reason = words_of(note.reason, whole=whole)
    before, _, outcome = note.what.rpartition(" ")
    word = outcome.removeprefix("user-")
    if before and (reason == word or reason.startswith((f"{word}:", f"{word} "))):
        return f"{before} {reason}"
    return f"{note.what}: {reason}"


def decision_view(note: HistoryNote, *, whole: bool) -> wire.DecisionView:
    reason = words_of(note.reason, whole=whole)
    return wire.DecisionView(
        at_s=note.at_s,
        event=note.event,
        job_id=note.job_id,
        what=note.what,
        reason=reason,
        reason_jobs=domain.mentions(note.reason, whole=whole),
    )


def ago(seconds: float) -> str:
    """A duration for a person, in its largest unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
