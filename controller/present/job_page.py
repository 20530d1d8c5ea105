"""Everything about one job as text: what was asked for, where it stands, every attempt, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from cotenant.controller.domain import JobSpec
from cotenant.controller.present import jobs, screen, sharing, units
from cotenant.controller.present.amounts import energy
from cotenant.controller.present.etas import describe_eta
from cotenant.controller.present.screen import paint, wrap_text
from cotenant.controller.present.snapshots import describe_snapshot
from cotenant.controller.present.tables import Column
from cotenant.controller.present.throughput import throughput_lines
from cotenant.controller.present.units import NONE, duration, local_time
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s


def page(job: wire.JobDetails, room: int | None, wide: bool = False) -> str:
    """The page of one job. `room`: columns to keep to."""
    spec = job.spec
    state = paint(job.phase.value, jobs.state_colour(job))
    head = f"job {job.job_id}  {paint(job.name, 'bold')}  {state}"
    pairs = [*standing(job), *asked_for(spec, wide)]
    width = max(len(title) for title, _ in pairs)
    lines = [
        head,
        *(f"  {title:<{width}}  {screen.wrap_text(text, width + 4, room)}" for title, text in pairs if text),
    ]
    if job.attempts:
        lines += ["", screen.table(ATTEMPT_COLUMNS, job.attempts, None if wide else room)]
    lines += _sharing_lines(job, None if wide else room)
    points = job.profile.points if job.profile is not None else ()
    lines += throughput_lines(points, job.throughput, spec.batch_size or job.batch_rows)
    return "\n".join(lines)


def _sharing_lines(job: wire.JobView, room: int | None) -> list[str]:
    """What the job did beside others; nothing where it had its devices to itself."""
    if not job.shared:
        return []
    said = sharing.sharing_notes(job)
    rows = screen.table(sharing.ROWS, job.shared, room)
    return ["", rows, *(screen.wrap_text(each, 2, room) for each in said)]


def _promise(job: wire.JobDetails) -> str:
    if job.guaranteed_h is None:
        return ""
    broken = f", broken {units.times(job.broken_promises)}" if job.broken_promises else ""
    return f": each run is guaranteed {job.guaranteed_h:g} h{broken}"


def standing(job: wire.JobDetails) -> Iterator[tuple[str, str]]:
    yield "why", job.reason
    of = f" of {job.organisation}" if job.organisation else ""
    priority = f", priority {job.priority}" if job.priority else ""
    yield "user", f"{job.user}{of}, class {job.job_class}{priority}{_promise(job)}"
    yield "times", _times(job)
    yield (
        "spent",
        (
            f"waited {duration(job.wait_s)}, loaded {duration(job.load_s)}, ran {duration(job.run_s)},"
            f" paused {duration(job.pause_s)}; {units.times(job.preemptions)} preempted"
            f"{_futile_loads(job)}{_resize_count(job)}"
        ),
    )
    yield "budget", _budget(job)
    yield "steps", "none are seen: it counts as running" if job.start_assumed else ""
    if job.spec.gpus_max > 1:
        yield "processes", _PROCESSES[job.spec.launch.mode]
    yield "launch", _launch(job.attempts)
    yield "next time", _overheads(job)
    yield "speed", _speed(job)
    if job.ended_at is None:
        yield "left", jobs.describe_left(job)
        yield "eta", describe_eta(job.eta)
    else:
        yield "exit code", jobs.exit_code(job)
    yield "promised", jobs.describe_promise(job.promised)
    yield "devices", jobs.devices(job.devices)
    yield "runs in", ", ".join(job.copies)
    yield "shares with", ", ".join(f"job {each}" for each in job.co_tenants)
    yield "bound", jobs.describe_share_bound(job)
    if job.attempts:
        n = len(job.attempts)
        yield "energy", energy(job.energy_kwh or 0.0, n, job.energy_unknown_attempts)
    yield "idle", jobs.describe_idle(job) or ("" if job.ended_at else job.spec.idle)
    yield "accumulation", _accumulation(job)
    yield "progress", _progress(job)
    yield "metrics", ", ".join(f"{each.name} {each.value:.4g}" for each in job.metrics if each.name != "loss")
    yield "link", job.link or ""
    yield "lost", job.output_lost or ""
    yield "batch", _batch(job)
    yield "profile", _profile(job)
    yield "resumable", _resumable(job)
    yield "told", job.told or ""


def _resume_proof(job: wire.JobView) -> str:
    """What resumes of jobs like this one have shown."""
    if job.resume_proof == "refuted":
        return "a resume of this kind came out differently"
    if job.resume_proof == "proven":
        return f"exact, proven for this kind {units.times(job.resumes_proven)}"
    return "not yet proven for this kind"


_PROCESSES: Final = {
    "worker": "one per GPU, each with its RANK (--launch worker)",
    "host": "one per host, which starts the others itself (--launch host)",
    "process": "one, which sees all its GPUs (--launch process)",
}


def _budget(job: wire.JobView) -> str:
    if job.budget_s is None:
        return ""
    trained = f"trained {duration(job.trained_s or 0.0)} of {duration(job.budget_s)}, as alone"
    return f"{trained}; {duration(job.run_s)} by the clock"


def _resumable(job: wire.JobDetails) -> str:
    if job.resumable and not job.durable_step and job.spec.resumable:
        return "yes, as submitted: it saves by itself on SIGTERM (--resumable yes)"
    if job.resumable:
        return f"yes, from step {job.durable_step}; {_resume_proof(job)}"
    if job.resumable_note:
        return f"no: {job.resumable_note}"
    if not job.step:
        so_far = "no" if job.ended_at else "not so far"
        return f"{so_far}: no optimizer of torch was seen to step, and the script has not said that it can"
    return "no: the script has not said that it can (cotenant.checkpoint; docs/zero-code.md)"


def _futile_loads(job: wire.JobView) -> str:
    if job.futile_preemptions == 0:
        return ""
    lost = f"{duration(job.futile_s)} of loading for nothing"
    return f", {units.times(job.futile_preemptions)} before its first step ({lost})"


def _resize_count(job: wire.JobView) -> str:
    return f", {units.times(job.resizes)} given another number of GPUs" if job.resizes else ""


SPEED_SOURCES: Final = {
    "profile": "measured by `cotenant profile`",
    "seen": "as its own steps took",
    "like jobs": "as jobs like it scaled",
    "assumed": "assumed: nothing was measured yet",
}


def _speed(job: wire.JobView) -> str:
    """Speedup of an elastic job over its smallest number of devices."""
    paces = [f"{each.speedup:.2f} on {each.gpus}" for each in job.speedups]
    return f"{', '.join(paces)} ({SPEED_SOURCES[job.speedups_source or 'assumed']})" if paces else ""


def _overheads(job: wire.JobView) -> str:
    """What the policy reckons with when it thinks of starting or preempting the job."""
    if job.expected_load_s is None or job.expected_pause_s is None:
        return ""
    load, pause = duration(job.expected_load_s), duration(job.expected_pause_s)
    return f"loading should take {load}, saving and leaving {pause}"


def _launch(attempts: tuple[wire.AttemptView, ...]) -> str:
    """How the newest attempt that has been launched was launched."""
    newest = next((each for each in reversed(attempts) if each.launch), None)
    if newest is None:
        return ""
    return f"{newest.launch}, because {newest.launch_why}" if newest.launch_why else newest.launch


def _times(job: wire.JobView) -> str:
    parts = [f"submitted {_local(job.submitted_at)}"]
    if job.begin_at is not None and job.started_at is None:
        parts.append(f"begins {_local(job.begin_at)} or later")
    if job.started_at is not None:
        parts.append(f"started {_local(job.started_at)}")
    if job.ended_at is not None:
        parts.append(f"ended {_local(job.ended_at)}")
    return ", ".join(parts)


def _local(at: str) -> str:
    return local_time(wall_s(at))


def _accumulation(job: wire.JobDetails) -> str:
    """Into how many parts its ranks cut the batches, now and before."""
    drew = ""
    if any(each.equivalent for each in job.attempts):
        drew = "equivalent, not exact: parts drew other random numbers"
    elif job.accumulation_steps > 1 and job.spec.launch.is_equivalent:
        drew = "equivalent: parts may draw other random numbers"
    now = _accumulation_now(job) if job.devices and job.ended_at is None else ""
    return "; ".join(filter(None, (now, _split_steps(job.attempts), drew, _cannot(job))))


def _accumulation_now(job: wire.JobDetails) -> str:
    of = f" of {job.sub_batch}" if job.sub_batch else ""
    if job.accumulation_steps == 1:
        return f"none, the whole batch{of} at once" if of else ""
    modelled = job.profile.modelled if job.profile is not None else ()
    guess = any(point.accumulation_steps == job.accumulation_steps for point in modelled)
    return f"{job.accumulation_steps} micro-batches{of} per step{', planned by a model' if guess else ''}"


def _split_steps(attempts: tuple[wire.AttemptView, ...]) -> str:
    """The last steps that were made in parts, and are over."""
    spans = []
    for attempt in attempts:
        ends = [*(each.from_step for each in attempt.parts[1:]), attempt.end_step if attempt.ended_at else 0]
        for each, end in zip(attempt.parts, ends, strict=False):
            if each.s > 1 and end > each.from_step:
                spans.append(f"{each.from_step + 1}-{end} in {each.s} parts")
    return f"steps {', '.join(spans[-SPANS_SHOWN:])}" if spans else ""


SPANS_SHOWN: Final = 4


def _profile(job: wire.JobDetails) -> str:
    """Where the profile comes from, and which s it covers."""
    profile = job.profile
    if profile is None:
        return ""
    s = ", ".join(str(point.accumulation_steps) for point in profile.points)
    came = "given: " if job.profile_given else ""
    peak = f"{units.size(profile.memory_mib_peak)} peak" if profile.memory_mib_peak is not None else ""
    whole = f"{profile.step_s * 1000:.0f} ms per step" if profile.step_s is not None else "no step times"
    points = f"s = {s}" if s else whole
    first = "on its first host, which stands for all" if job.spec.nodes > 1 else ""
    return f"{came}{profile.source}, {', '.join(filter(None, (points, peak, first)))}"


def _cannot(job: wire.JobView) -> str:
    return f"it cannot be split: {job.accumulates_note}" if job.accumulates_note else ""


def _progress(job: wire.JobView) -> str:
    total = job.iterations or job.total_steps
    text = f"step {job.step} of {total}" if total else f"step {job.step}" if job.step else "no step seen"
    if job.step_s is not None:
        text += f", {job.step_s * 1000:.0f} ms per step"
    if job.loss is not None:
        text += f", loss {job.loss:.4g}"
    return f"{text} ({job.total_note})" if job.total_note and not job.iterations else text


def _batch(job: wire.JobDetails) -> str:
    """Rows per worker, and who says so."""
    rows = job.spec.batch_size or job.batch_rows
    if rows is None:
        return f"not known: {job.batch_note}" if job.batch_note else ""
    return f"{rows}, {job.batch_note or 'as submitted'}"


def asked_for(spec: JobSpec, wide: bool) -> Iterator[tuple[str, str]]:
    launch = spec.launch
    withheld = "" if launch.workdir else " (the rest is its owner's)"
    yield "command", shlex.join(launch.argv) + withheld
    yield "grid", ", ".join(f"{name}={value}" for name, value in spec.parameters)
    yield "in", launch.workdir if launch.snapshot is None else f"a copy of {launch.workdir}"
    yield "snapshot", "" if launch.snapshot is None else describe_snapshot(launch.snapshot)
    hosts = f" on {units.plural(spec.nodes, 'host')}" if spec.nodes else ""
    kind = f" of type {spec.gpu_type}" if spec.gpu_type else ""
    gpus = (
        units.plural(spec.gpus_min, "GPU") if spec.gpu_fraction == 1.0 else f"{spec.gpu_fraction:g} of a GPU"
    )
    if spec.is_elastic:
        gpus = f"{spec.gpus_min} to {spec.gpus_max} GPUs, the same batch on any"
    yield "asked for", f"{gpus}{kind}{hosts}{_limits(spec)}"
    if launch.container is not None:
        mounts = "".join(f", {each.target}" for each in launch.container.mounts)
        yield "image", f"{launch.container.image}{' with' if mounts else ''}{mounts[1:]}"
    yield "after", ", ".join(f"{d.job_id} ({d.need})" for d in spec.after)
    if wide:
        yield "variables", "\n             ".join(f"{name}={value}" for name, value in launch.env.items())
    yield "secrets", ", ".join(launch.secrets)


def _limits(spec: JobSpec) -> str:
    parts = [
        f"time limit {duration(spec.time_limit_s)}" if spec.time_limit_s is not None else "",
        f"expected {duration(spec.expected_s)}" if spec.expected_s is not None else "",
        f"{units.size(spec.memory_mib)} device memory" if spec.memory_mib is not None else "",
        f"{units.plural(spec.cpus, 'core')} per host" if spec.cpus else "",
        f"{units.size(spec.host_memory_mib)} main memory per host" if spec.host_memory_mib else "",
        f"features {', '.join(spec.features)}" if spec.features else "",
        "sharing never" if spec.share == "never" else "",
        f"{spec.retries} retries" if spec.retries else "",
        _watchdog(spec.launch.watchdog_s),
        f"devices as {spec.launch.devices_as}" if spec.launch.devices_as else "",
    ]
    return "".join(f", {part}" for part in parts if part)


def _watchdog(declared_s: float | None) -> str:
    if declared_s is None:
        return ""
    return f"watchdog {duration(declared_s)}" if declared_s > 0 else "watchdog off"


ATTEMPT_COLUMNS: Final = (
    Column("ATTEMPT", lambda a: str(a.attempt), right=True),
    Column("DEVICES", lambda a: jobs.devices(a.devices), rank=2, limit=24),
    Column("WITH", lambda a: ",".join(a.co_tenants), rank=3, limit=12),
    Column("S", lambda a: _s_used(a), rank=1, right=True),
    Column("LAUNCHED", lambda a: local_time(a.launched_s), rank=5),
    Column("LOAD", lambda a: _load(a), rank=6, right=True),
    Column("STEPS", lambda a: _steps(a), right=True),
    Column("RESUME", lambda a: _resume(a), rank=4),
    Column("OUTCOME", lambda a: a.outcome),
    Column("REASON", lambda a: a.reason),
)


def _load(attempt: wire.AttemptView) -> str:
    since_s = attempt.trains_since_s
    return NONE if since_s is None else duration(since_s - attempt.launched_s)


def _steps(attempt: wire.AttemptView) -> str:
    return f"{attempt.start_step}-{'' if attempt.ended_at is None else attempt.end_step}"


def _resume(attempt: wire.AttemptView) -> str:
    if attempt.attempt == 1 or attempt.exact is None:
        return NONE
    if not attempt.exact:
        return "equivalent"
    return f"exact, proven over {units.plural(attempt.proven, 'step')}" if attempt.proven else "exact"


def _s_used(attempt: wire.AttemptView) -> str:
    used = dict.fromkeys(each.s for each in attempt.parts)
    return ",".join(str(s) for s in used or (attempt.accumulation_steps,))


def explanation_page(reply: wire.Explained) -> str:
    job = reply.job
    said, count = reply.explanation.lines or (job.reason,), reply.explanation.lines_now
    now, *more = said[:count]
    state = paint(job.phase.value, jobs.state_colour(job))
    lines = [f"job {job.job_id} ({job.name}): {state}", f"  {wrap_text(now, 2)}"]
    lines += [f"  {wrap_text(line, 2)}" for line in more]
    if job.ended_at is None:
        lines.append(f"  left {wrap_text(jobs.describe_left(job), 2)}")
    if eta := describe_eta(job.eta):
        lines.append(f"  {wrap_text(eta, 2)}")
    if job.co_tenants and (bound := jobs.describe_share_bound(job)):
        lines.append(f"  {wrap_text(bound, 2)}")
    if job.resumable:
        lines.append(f"  resume: {_resume_proof(job)}")
    lines += [f"  {wrap_text(line, 2)}" for line in reply.explanation.ahead]
    if history := said[count:]:
        lines += ["", paint("How it came about, newest first:", "bold")]
        lines += [f"  {wrap_text(line, 4)}" for line in history]
    return "\n".join(lines)
