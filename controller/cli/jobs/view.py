"""A job as the commands show it: the JSON object, the columns, the sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cotenant.controller.cli.frame.screen import NONE, STATE_COLOURS, Column, duration, utc
from cotenant.controller.domain.job import capabilities_of
from cotenant.controller.wire.clients import Jobs, JobView

Wall = Callable[[float | None], float | None]
"""A journal time as seconds since the epoch."""


def wall_clock(now_s: float, wall_s: float) -> Wall:
    return lambda at_s: None if at_s is None else wall_s - now_s + at_s


def job_json(job: JobView, wall: Wall) -> dict[str, Any]:
    """Without its schema. Times are RFC 3339 in UTC, durations seconds; what does not apply is None."""
    ended = job.ended_s is not None
    return {
        "job": job.job_id,
        "name": job.name,
        "user": job.user,
        "state": job.phase.value,
        "reason": job.reason,
        "reason_code": job.reason_code,
        "attempt": job.attempt,
        "class": job.job_class,
        "share": job.share,
        "gpus": job.gpus,
        "devices": list(job.devices),
        "co_tenants": list(job.co_tenants),
        "co_tenants_ever": list(job.co_tenants_ever),
        "sub_batch": job.sub_batch,
        "accumulation_steps": job.accumulation_steps,
        "accumulation_steps_ever": list(job.accumulation_steps_ever),
        "step": job.step,
        "iterations": job.iterations,
        "total_steps": job.length.steps,
        "total_note": job.length.note or None,
        "step_s": job.step_s,
        "loss": job.loss,
        "resumable": job.resumable,
        **{name: None if said == "" else said for name, said in capabilities_of(job).items()},
        "durable_step": job.durable_step,
        "preemptions": job.preemptions,
        "futile_preemptions": job.futile_preemptions,
        "aborted_preemptions": job.aborted_preemptions,
        "exit_code": job.exit_code,
        "submitted_at": utc(wall(job.submitted_s)),
        "started_at": utc(wall(job.started_s)),
        "ended_at": utc(wall(job.ended_s)),
        "wait_s": job.wait_s,
        "load_s": job.load_s,
        "run_s": job.run_s,
        "pause_s": job.pause_s,
        "futile_s": job.futile_s,
        "expected_load_s": None if ended else job.expected_load_s,
        "expected_pause_s": None if ended else job.expected_pause_s,
        "left_s": None if ended else job.remaining_s,
        "left_source": None if ended else job.estimate_source or None,
    }


def devices(names: tuple[str, ...]) -> str:
    """`gpu07/0,1 gpu08/0`: the host once."""
    if not names:
        return ""
    by_host: dict[str, list[str]] = {}
    for name in names:
        host, _, local = name.rpartition("/")
        by_host.setdefault(host, []).append(local)
    return " ".join(f"{host}/{','.join(locals_)}" for host, locals_ in by_host.items())


def left(job: JobView) -> str:
    return duration(job.remaining_s) if job.ended_s is None else NONE


def steps(job: JobView) -> str:
    total = job.iterations or job.length.steps
    return f"{job.step}/{total}" if total else str(job.step)


def accumulation(job: JobView) -> str:
    return f"{job.accumulation_steps}" if job.devices else NONE


def state_colour(job: JobView) -> str:
    return STATE_COLOURS.get(job.phase.value, "")


COLUMNS: Final = (
    Column("JOB", lambda j: j.job_id),
    Column("NAME", lambda j: j.name, limit=14),
    Column("USER", lambda j: j.user, rank=8, limit=10),
    Column("STATE", lambda j: j.phase.value, colour=state_colour),
    Column("GPUS", lambda j: str(j.gpus), rank=2, right=True),
    Column("DEVICES", lambda j: devices(j.devices), rank=4, limit=24, ends=True),
    Column("WITH", lambda j: ",".join(j.co_tenants), rank=3, limit=12),
    Column("S", accumulation, rank=5, right=True),
    Column("WAIT", lambda j: duration(j.wait_s), rank=6, right=True),
    Column("RUN", lambda j: duration(j.run_s), rank=7, right=True),
    Column("LEFT", left, rank=1, right=True),
    Column("REASON", lambda j: j.reason),
)

WIDE_COLUMNS: Final = (
    *COLUMNS[:-1],
    Column("CLASS", lambda j: j.job_class),
    Column("STEP", lambda j: steps(j), right=True),
    Column("SAVED", lambda j: str(j.durable_step), right=True),
    Column("PREEMPTED", lambda j: str(j.preemptions), right=True),
    Column("LOAD", lambda j: duration(j.load_s), right=True),
    Column("PAUSE", lambda j: duration(j.pause_s), right=True),
    COLUMNS[-1],
)


def clock_of(reply: Jobs) -> Wall:
    return wall_clock(reply.now_s, reply.wall_s)
