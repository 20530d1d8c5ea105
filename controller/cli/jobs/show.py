"""`cotenant show`: everything about one job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, OutputFlag, chosen, show_one
from cotenant.controller.cli.frame.parameters import argument
from cotenant.controller.cli.frame.screen import NONE, Column, duration, local_time, paint
from cotenant.controller.cli.jobs.view import (
    Wall,
    devices,
    job_json,
    left,
    state_colour,
    wall_clock,
)
from cotenant.controller.cli.profiles.throughput import throughput_json, throughput_lines
from cotenant.controller.cli.profiles.view import profile_json
from cotenant.controller.cli.setup.completion import complete_job
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import JobSpec
from cotenant.controller.wire.clients import AttemptView, JobView, ShowJob, Shown

JobArgument = Annotated[str, argument(metavar="JOB", help="Its number.", complete=complete_job)]


def show(
    job: JobArgument, output: OutputFlag = None, as_json: JsonFlag = False, endpoint: EndpointFlag = None
) -> None:
    """Everything about one job: what was asked for, where it stands, every attempt.

    For example:

      cotenant show 7
      cotenant show 7 --json | jq .attempts
    """
    form = chosen(output, as_json)
    with asking(endpoint) as client:
        reply = client.ask(ShowJob(job_id=JobId(job)))
    wall = wall_clock(reply.now_s, reply.wall_s)
    value, wide = shown_json(reply, wall), form == "wide"
    show_one(form, value, reply.job.job_id, reply, lambda shown: page(shown, wall, wide))


def shown_json(reply: Shown, wall: Wall) -> dict[str, Any]:
    return {
        "schema": "job/1",
        **job_json(reply.job, wall),
        "spec": {"schema": "job-spec/1", **msgspec.to_builtins(reply.spec)},
        "attempts": [attempt_json(each, wall) for each in reply.attempts],
        "profile": None if reply.profile is None else profile_json(reply.profile),
        "profile_given": reply.profile_given,
        "throughput": throughput_json(reply.profile, reply.spec.batch_size, reply.spec.gang),
    }


def attempt_json(attempt: AttemptView, wall: Wall) -> dict[str, Any]:
    return {
        "schema": "attempt/1",
        "attempt": attempt.attempt,
        "devices": list(attempt.devices),
        "co_tenants": list(attempt.co_tenants),
        "accumulation_steps": attempt.accumulation_steps,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "exact": attempt.exact,
        "start_step": attempt.start_step,
        "first_step": attempt.first_step,
        "end_step": attempt.end_step,
        "launched_at": screen.utc(wall(attempt.launched_s)),
        "first_step_at": screen.utc(wall(attempt.first_step_s)),
        "stop_requested_at": screen.utc(wall(attempt.stop_requested_s)),
        "ended_at": screen.utc(wall(attempt.ended_s)),
    }


# --- For a person -----------------------------------------------------------------------------------


def page(reply: Shown, wall: Wall, wide: bool) -> str:
    job, spec = reply.job, reply.spec
    state = paint(job.phase.value, state_colour(job))
    head = f"job {job.job_id}  {paint(job.name, 'bold')}  {state}"
    pairs = [*_standing(reply, wall), *_asked_for(spec, wide)]
    width = max(len(title) for title, _ in pairs)
    lines = [
        head,
        *(f"  {title:<{width}}  {screen.wrapped(text, width + 4)}" for title, text in pairs if text),
    ]
    if reply.attempts:
        lines += [
            "",
            screen.table(attempt_columns(wall), reply.attempts, None if wide else screen.terminal_width()),
        ]
    lines += throughput_lines(reply.profile, spec.batch_size, spec.gang)
    return "\n".join(lines)


def _standing(reply: Shown, wall: Wall) -> Iterator[tuple[str, str]]:
    job = reply.job
    yield "why", job.reason
    yield "user", f"{job.user}, class {job.job_class}"
    yield "times", _times(reply, wall)
    yield (
        "spent",
        (
            f"waited {duration(job.wait_s)}, loaded {duration(job.load_s)}, ran {duration(job.run_s)},"
            f" paused {duration(job.pause_s)}; {screen.times(job.preemptions)} preempted{_in_vain(job)}"
        ),
    )
    yield "next time", _overheads(job)
    if job.ended_s is None:
        yield "left", f"{left(job)} of training ({_source(job.estimate_source)})"
    else:
        yield "exit code", NONE if job.exit_code is None else str(job.exit_code)
    yield "devices", devices(job.devices)
    yield "shares with", ", ".join(f"job {each}" for each in job.co_tenants)
    if job.devices:
        yield "accumulation", _accumulation(reply)
    yield "progress", _progress(reply)
    yield "profile", _profile(reply)
    if job.ended_s is None:
        yield "resumable", _resumable(job)


def _resumable(job: JobView) -> str:
    if job.resumable:
        return f"yes, from step {job.durable_step}"
    return f"no: {job.resumable_note or 'the script has not said that it can (see --checkpoint auto)'}"


def _in_vain(job: JobView) -> str:
    if job.futile_preemptions == 0:
        return ""
    lost = f"{duration(job.futile_s)} of loading for nothing"
    return f", {screen.times(job.futile_preemptions)} before its first step ({lost})"


def _overheads(job: JobView) -> str:
    """What the policy reckons with when it thinks of starting or preempting the job."""
    if job.ended_s is not None or job.expected_load_s is None or job.expected_pause_s is None:
        return ""
    load, pause = duration(job.expected_load_s), duration(job.expected_pause_s)
    return f"loading should take {load}, saving and leaving {pause}"


def _times(reply: Shown, wall: Wall) -> str:
    job = reply.job
    parts = [f"submitted {local_time(wall(job.submitted_s))}"]
    if job.started_s is not None:
        parts.append(f"started {local_time(wall(job.started_s))}")
    if job.ended_s is not None:
        parts.append(f"ended {local_time(wall(job.ended_s))}")
    return ", ".join(parts)


SOURCES: Final = {
    "none": "nothing to estimate it from",
    "user": "as its user expects",
    "profile": "from its measured profile",
    "same command": "as earlier runs of the same command",
    "like job": "as the steps of one of its kind took",
    "cluster median": "unknown; --iterations or --expect would say it",
    "measured": "from its measured steps",
    "loops": "from its measured steps and the loops that were seen",
}


def _source(source: str) -> str:
    known, _, overrun = (source or "none").partition(", ")
    return SOURCES.get(known, known) + ("; it has taken longer already" if overrun else "")


def _accumulation(reply: Shown) -> str:
    job = reply.job
    if job.accumulation_steps == 1:
        whole = f"none, the whole batch of {job.sub_batch} at once" if job.sub_batch else ""
        return "; ".join(part for part in (whole, _cannot(job)) if part)
    of = f" of {job.sub_batch}" if job.sub_batch else ""
    return f"{job.accumulation_steps} micro-batches{of} per step"


def _profile(reply: Shown) -> str:
    """Where it comes from, and the s it covers."""
    profile = reply.profile
    if profile is None:
        return ""
    s = ", ".join(str(point.accumulation_steps) for point in profile.points)
    came = "given: " if reply.profile_given else ""
    peak = f"{screen.size(profile.memory_mib_peak)} peak" if profile.memory_mib_peak is not None else ""
    whole = f"{profile.step_s * 1000:.0f} ms per step" if profile.step_s is not None else "no step times"
    points = f"s = {s}" if s else whole
    first = "on its first host, which stands for all" if reply.spec.nodes > 1 else ""
    return f"{came}{profile.source}, {', '.join(filter(None, (points, peak, first)))}"


def _cannot(job: JobView) -> str:
    return f"it cannot be split: {job.accumulates_note}" if job.accumulates_note else ""


def _progress(reply: Shown) -> str:
    job = reply.job
    total = job.iterations or job.length.steps
    text = f"step {job.step} of {total}" if total else f"step {job.step}"
    if job.step_s is not None:
        text += f", {job.step_s * 1000:.0f} ms per step"
    if job.loss is not None:
        text += f", loss {job.loss:.4g}"
    return f"{text} ({job.length.note})" if job.length.note and not job.iterations else text


def _asked_for(spec: JobSpec, wide: bool) -> Iterator[tuple[str, str]]:
    launch = spec.launch
    yield "command", shlex.join(launch.argv)
    yield "in", launch.workdir
    hosts = f" on {screen.plural(spec.nodes, 'host')}" if spec.nodes else ""
    kind = f" of type {spec.gpu_type}" if spec.gpu_type else ""
    yield "asked for", f"{screen.plural(spec.gpus_min, 'GPU')}{kind}{hosts}{_limits(spec)}"
    yield "after", ", ".join(f"{d.job_id} ({d.need})" for d in spec.after)
    if wide:
        yield "variables", "\n             ".join(f"{name}={value}" for name, value in launch.env.items())
    yield "secrets", ", ".join(launch.secrets)


def _limits(spec: JobSpec) -> str:
    parts = [
        f"time limit {duration(spec.time_limit_s)}" if spec.time_limit_s is not None else "",
        f"expected {duration(spec.expected_s)}" if spec.expected_s is not None else "",
        f"{screen.size(spec.memory_mib)} device memory" if spec.memory_mib is not None else "",
        f"{spec.cpus} cores" if spec.cpus else "",
        f"{screen.size(spec.host_memory_mib)} main memory" if spec.host_memory_mib else "",
        f"features {', '.join(spec.features)}" if spec.features else "",
        "sharing never" if spec.share == "never" else "",
        f"{spec.retries} retries" if spec.retries else "",
        _watchdog(spec.launch.watchdog_s),
    ]
    return "".join(f", {part}" for part in parts if part)


def _watchdog(declared_s: float | None) -> str:
    if declared_s is None:
        return ""
    return f"watchdog {duration(declared_s)}" if declared_s > 0 else "watchdog off"


def attempt_columns(wall: Wall) -> tuple[Column, ...]:
    return (
        Column("ATTEMPT", lambda a: str(a.attempt), right=True),
        Column("DEVICES", lambda a: devices(a.devices), rank=2, limit=24),
        Column("WITH", lambda a: ",".join(a.co_tenants), rank=3, limit=12),
        Column("S", lambda a: str(a.accumulation_steps), rank=1, right=True),
        Column("LAUNCHED", lambda a: local_time(wall(a.launched_s)), rank=5),
        Column("LOAD", lambda a: _between(a.launched_s, a.first_step_s), rank=6, right=True),
        Column(
            "STEPS",
            _steps,
            right=True,
        ),
        Column("RESUME", _resume, rank=4),
        Column("OUTCOME", lambda a: a.outcome),
        Column("REASON", lambda a: a.reason),
    )


def _between(first_s: float, second_s: float | None) -> str:
    return NONE if second_s is None else duration(second_s - first_s)


def _steps(attempt: AttemptView) -> str:
    return f"{attempt.start_step}-{'' if attempt.ended_s is None else attempt.end_step}"


def _resume(attempt: AttemptView) -> str:
    if attempt.attempt == 1 or attempt.exact is None:
        return NONE
    return "exact" if attempt.exact else "equivalent"
