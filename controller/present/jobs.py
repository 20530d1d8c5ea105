"""A job as the commands show it to a person: the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cotenant.controller.domain import ENDED, OVERRUN, WAITING, Length, Phase, basis_in_words, texts
from cotenant.controller.present.etas import age, time_columns
from cotenant.controller.present.sharing import OF_JOBS
from cotenant.controller.present.tables import STATE_COLOURS, Column
from cotenant.controller.present.units import NONE, duration, local_time
from cotenant.controller.wire import clients, wall_s

QUIET_S: Final = 60.0
"""Shorter silences are usual."""


def task_range(array: clients.ArrayView) -> str:
    """`38_[0-999]`, as Slurm writes it."""
    return f"{array.number}_[{array.first}-{array.last}]"


def count_text(array: clients.ArrayView) -> str:
    """`3 run, 990 wait, 7 ended (2 failed)`."""
    waiting = sum(array.by_state.get(phase, 0) for phase in WAITING)
    ended = sum(array.by_state.get(phase, 0) for phase in ENDED)
    failed = array.by_state.get(Phase.FAILED, 0)
    counts = {"run": array.tasks - waiting - ended, "wait": waiting, "ended": ended}
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{told} ({failed} failed)" if failed else told


def devices(names: tuple[str, ...]) -> str:
    """The names of devices in short, `gpu07/0,1 gpu08/0`: the host once."""
    if not names:
        return ""
    by_host: dict[str, list[str]] = {}
    for name in names:
        host, _, local = name.rpartition("/")
        by_host.setdefault(host, []).append(local)
    return " ".join(f"{host}/{','.join(locals_)}" for host, locals_ in by_host.items())


def left_s(job: clients.JobView) -> float | None:
    """By which lists are sorted: a guess orders as well."""
    return job.left_s if job.left is None else job.left.likely_s


def left_text(job: clients.JobView, known: Callable[[float | None], str] = duration) -> str:
    """`3m12s`, `5 min (guess)`. `known`: how a time is written that is no guess."""
    left = job.left if job.ended_at is None else None
    if left is None or not left.is_guess:
        return known(job.left_s) if job.ended_at is None else NONE
    return f"{texts.rough_duration(left.likely_s).removeprefix('about ')} (guess)"


def describe_left(job: clients.JobView) -> str:
    """`42s of training (from its measured steps)`, `about 5 min (a guess: nothing is known yet)`."""
    left = job.left
    if left is None:
        expected = "unknown" if job.left_s is None else f"{left_text(job)} of training"
        return f"{expected} ({basis_in_words(job.left_source or 'none')})"
    length = Length(left.likely_s, left.low_s, left.high_s, left.source)
    if length.is_exact:
        source = left.source if left.likely_s > 0.0 else f"{left.source.removesuffix(OVERRUN)}{OVERRUN}"
        return f"{length} of training ({basis_in_words(source)})"
    return str(length)


def steps(job: clients.JobView) -> str:
    total = job.iterations or job.total_steps
    return f"{job.step}/{total}" if total else str(job.step)


def gpus(job: clients.JobView) -> str:
    return f"{job.gpus * job.gpu_fraction:g}"


def accumulation(job: clients.JobView) -> str:
    return f"{job.accumulation_steps}" if job.devices else NONE


def promised_end_text(promise: clients.PromisedEndView | None) -> str:
    """`14:05`, and what has become of it once that is known."""
    if promise is None:
        return NONE
    state = "" if promise.state == "open" else f" {promise.state}"
    return f"{local_time(wall_s(promise.by_at))}{state}"


def describe_promise(promise: clients.PromisedEndView | None) -> str:
    """The promise with its reason, or with the devices kept for it; empty without a promise."""
    if promise is None:
        return ""
    text = f"to end by {promised_end_text(promise)}"
    if promise.why is not None:
        return f"{text}: {promise.why}"
    if promise.devices and promise.from_at is not None:
        return f"{text}; {devices(promise.devices)} kept from {local_time(wall_s(promise.from_at))}"
    return text


def share_bound_text(bound: clients.ShareBoundView | None) -> str:
    """`1.08 of 1.1`: the median of the last minute, and the bound."""
    if bound is None:
        return NONE
    return f"{bound.ratio_p50:.2f} of {bound.max:g}" if bound.ratio_p50 is not None else f"{bound.max:g}"


def describe_share_bound(job: clients.JobView) -> str:
    """What sharing may cost the job, how that stands, and who is held back for it; empty without a bound."""
    bound, held_back = job.bound, describe_pace(job)
    if bound is None:
        return held_back
    names_it = job.share.startswith("max=")
    whose = "its own" if names_it else "its organisation's or class's" if bound.is_own else "the cluster's"
    text = f"a step may take {bound.max:g} times as long as alone ({whose})"
    if bound.ratio_p50 is not None:
        text += f"; over the last minute {bound.ratio_p50:.2f} times"
        text += f", p99 {bound.ratio_p99:.2f}" if bound.ratio_p99 is not None else ""
    others = ", ".join(f"job {each}" for each in job.co_tenants)
    if others and bound.guests_in_phase:
        text += f"; {others} begins its micro-batches where this job's step is idle"
    if others and bound.guest_pace < 1.0:
        text += f"; {others} may train {100 * bound.guest_pace:.0f} % of the time"
    return f"{text}; {held_back}" if held_back else text


def describe_pace(job: clients.JobView) -> str:
    """That the job waits between micro-batches for a co-tenant; empty where it does not."""
    if job.pace is None or job.pace >= 1.0:
        return ""
    return f"trains {100 * job.pace:.0f} % of the time, so that a co-tenant keeps its bound"


def is_idle(job: clients.JobView) -> bool:
    """Whether it was said of the job that it holds its devices idle."""
    return job.phase is Phase.RUNNING and job.idle is not None and job.idle.since_at is not None


def describe_idle(job: clients.JobView) -> str:
    """Since when it is idle and what is done about it; empty for a job on no device, or with no rule."""
    idle = job.idle
    if idle is None or (idle.rule == "none" and idle.since_at is None):
        return ""
    counts = "no kernel, step or input counts as idle"
    if idle.since_at is not None:
        return f"since {local_time(wall_s(idle.since_at))}, so far: {idle.stage} ({idle.rule}; {counts})"
    if idle.idle_s is None:
        return f"nothing tells whether it is ({idle.rule})"
    for_s = f"for {duration(idle.idle_s)} so far" if idle.idle_s >= QUIET_S else "no"
    return f"{for_s} ({idle.rule}; {counts})"


def parameters(job: clients.JobView) -> str:
    """`lr=.1 seed=0`: what a grid gave the job."""
    return " ".join(f"{name}={value}" for name, value in job.parameters.items())


def state_colour(job: clients.JobView) -> str:
    return STATE_COLOURS.get(job.phase.value, "")


def exit_code(job: clients.JobView) -> str:
    return NONE if job.exit_code is None else str(job.exit_code)


def number(job: clients.JobView) -> str:
    return job.job_id if job.array is None else task_range(job.array)


def state(job: clients.JobView) -> str:
    if job.array is not None:
        return count_text(job.array)
    return f"{job.phase.value}, idle" if is_idle(job) else job.phase.value


def single_job_cell(cell: Callable[[clients.JobView], str]) -> Callable[[clients.JobView], str]:
    """What a row that stands for an array does not say, since its tasks differ in it."""
    return lambda job: cell(job) if job.array is None else NONE


def add_values(columns: Sequence[Column], rows: Sequence[clients.JobView]) -> list[Column]:
    """The columns, with one of values behind the name where a grid has given some."""
    has_values = any(job.parameters and job.array is None for job in rows)
    return [*columns[:2], *([VALUES] if has_values else []), *columns[2:]]


VALUES: Final = Column("VALUES", single_job_cell(parameters), rank=1, limit=30)


COLUMNS: Final = (
    Column("JOB", number),
    Column("NAME", lambda j: j.name, limit=14),
    Column("USER", lambda j: j.user, rank=8, limit=10),
    Column("STATE", state, colour=state_colour),
    Column("GPUS", gpus, rank=2, right=True),
    Column("DEVICES", single_job_cell(lambda j: devices(j.devices)), rank=4, limit=24, ends=True),
    Column("WITH", single_job_cell(lambda j: ",".join(j.co_tenants)), rank=3, limit=12),
    Column("S", single_job_cell(accumulation), rank=5, right=True),
    Column("WAIT", single_job_cell(lambda j: duration(j.wait_s)), rank=6, right=True),
    Column("RUN", single_job_cell(lambda j: duration(j.run_s)), rank=7, right=True),
    Column("LEFT", single_job_cell(left_text), rank=1, right=True),
    Column("REASON", lambda j: j.reason),
)

ENDED_COLUMNS: Final = (
    *COLUMNS[:4],
    Column("EXIT", single_job_cell(exit_code), rank=2, right=True),
    Column("ENDED", lambda j: local_time(j.ended_s), rank=1),
    *COLUMNS[8:10],
    COLUMNS[-1],
)

WIDE_COLUMNS: Final = (
    *COLUMNS[:-1],
    Column("CLASS", lambda j: j.job_class),
    Column("PRIO", lambda j: str(j.priority), right=True),
    Column("STEP", lambda j: steps(j), right=True),
    Column("SAVED", lambda j: str(j.durable_step), right=True),
    Column("PREEMPTED", lambda j: str(j.preemptions), right=True),
    Column("LOAD", lambda j: duration(j.load_s), right=True),
    Column("PAUSE", lambda j: duration(j.pause_s), right=True),
    *OF_JOBS,
    *time_columns(lambda j: (j.eta.start, j.eta.finish) if j.eta else (None, None), wide=True),
    Column("TOLD", lambda j: age(j.eta)),
    Column("PROMISED", lambda j: promised_end_text(j.promised)),
    Column("BOUND", lambda j: share_bound_text(j.bound)),
    Column("PACE", lambda j: NONE if j.pace is None else f"{100 * j.pace:.0f} %", right=True),
    COLUMNS[-1],
)
