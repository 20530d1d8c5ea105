"""Which message follows from which event, and what it says. Pure.

Rule: whether something is told follows from the event, its decision and the state after it alone, so that it
is written in the event's own transaction. Tasks of an array are told of together: the first start, the first
failure, and the end of the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from cotenant.controller import domain
from cotenant.controller.api import link_of, views_of
from cotenant.controller.domain import events as ev
from cotenant.controller.domain import texts
from cotenant.controller.engine import Engine
from cotenant.controller.history import AttemptRecord, JobRecord
from cotenant.controller.present import sharing, units
from cotenant.controller.store import RecoveredState

PastTasks = Callable[[str], Sequence[JobRecord]]
"""Returns the forgotten tasks of an array (`Core.forgotten_tasks`)."""
FAILED_SHOWN: Final = 10


class Occasion(NamedTuple):
    """Something that has happened to a job, of which its owner may want to know."""

    kind: domain.NoticeKind
    job: domain.Job
    attempt: AttemptRecord | None
    """None: it has had none."""
    reason: domain.Reason | None = None
    """Why, where the job's own reason does not say it."""
    mark: str = ""
    """Tells it from others of its kind in the same attempt."""


class NoticeText(NamedTuple):
    """What a message says, without output."""

    subject: str
    lines: tuple[str, ...]
    has_output: bool
    """The last lines of the job's output belong to it."""


def _start(event: ev.AttemptStarted, state: RecoveredState) -> Iterator[Occasion]:
    """The first host of a gang stands for all."""
    job, attempt = state.engine.jobs.get(event.job_id), state.history.newest(event.job_id)
    if job is None or attempt is None or attempt.ended_s is not None:
        return
    if event.attempt == attempt.attempt == 1 and event.host_id == attempt.hosts[0]:
        yield Occasion("start", job, attempt)


def _idle(event: ev.IdleSeen, state: RecoveredState) -> Iterator[Occasion]:
    """One that is stopped is told of as that."""
    job = state.engine.jobs.get(event.job_id)
    if job is not None and event.since_s is not None and event.stage != "stop":
        reason = domain.idle_reason(event.stage, state.engine.now_s - event.since_s)
        mark = f"{event.stage}-{event.since_s:.0f}"
        yield Occasion("idle", job, state.history.newest(event.job_id), reason, mark)


BY_EVENT: Final[dict[type[ev.Event], Callable[[Any, RecoveredState], Iterator[Occasion]]]] = {
    ev.AttemptStarted: _start,
    ev.IdleSeen: _idle,
}
"""What certain events say by themselves. What ends a job or its attempt is seen by what has become of it."""


def occasions(event: ev.AnyEvent, state: RecoveredState) -> Iterator[Occasion]:
    """Yields what an event has brought, from the state after it."""
    if rule := BY_EVENT.get(type(event)):
        yield from rule(event, state)
    history = state.history
    for job in state.engine.ledger.phases.ended_now:
        attempt = history.newest(job.job_id)
        yield Occasion("fail" if job.phase is domain.Phase.FAILED else "end", job, attempt)
    for job, closed in history.closed:
        if job.phase not in domain.ENDED and closed.outcome != "resized":
            yield Occasion("preempt", job, closed)


def wants(job: domain.Job, kind: domain.NoticeKind) -> bool:
    """Whether a job's owner asked to be told: of the end means of any, a failure too."""
    return kind in job.spec.notify or (kind == "fail" and "end" in job.spec.notify)


def compose_text(occasion: Occasion, state: RecoveredState, past_tasks: PastTasks) -> NoticeText | None:
    """What is told about it; None: nothing is, for a message about the array has told it or will."""
    if occasion.job.job_id != domain.array_of(occasion.job.job_id):
        return _array_text(occasion, state.engine, past_tasks)
    return _job_text(occasion, state)


# --- One job ----------------------------------------------------------------------------------------

TEXTS: Final[dict[domain.NoticeKind, tuple[str, str, str]]] = {
    "start": ("{what} started{where}", "cotenant logs -f {job}", "cotenant show {job}"),
    "end": ("{what} finished{where}{after}", "cotenant logs {job}", "cotenant show {job}"),
    "fail": ("{what} failed{where}{after}", "cotenant logs {job}", "cotenant requeue {job}"),
    "preempt": (
        "{what} left its devices{where}{after} and waits again",
        "cotenant explain {job}", "cotenant eta {job}",
    ),
    "idle": ("{what} holds devices{where} and uses none", "cotenant show {job}", "cotenant cancel {job}"),
}  # fmt: skip
"""The subject, and how to go on."""


def _job_text(occasion: Occasion, state: RecoveredState) -> NoticeText:
    kind, job, attempt, reason, _ = occasion
    subject = TEXTS[kind][0]
    if job.phase is domain.Phase.CANCELLED:
        subject = subject.replace("finished", "was cancelled")
    lines = [texts.one_line(domain.render_whole(reason or job.reason))]
    if kind == "preempt" and attempt is not None:
        lines = [texts.one_line(attempt.reason or domain.render_whole(job.reason)), _how_it_goes_on(job)]
    if kind != "start":
        rows = views_of(state.engine.jobs, job, state.history.attempts(job.job_id))[0]
        lines += [told for row in rows[-sharing.SHOWN_MAX :] if (told := sharing.slowdown(row))]
    if link := link_of(job.spec, state.history.attempts(job.job_id)):
        lines.append(f"its page: {link}")
    name, where = _name(job, f"job {job.job_id}"), _where(attempt)
    subject = subject.format(what=name, where=where, after=_after(occasion))
    has_output = kind != "start" and attempt is not None
    return NoticeText(subject, (*lines, *_next_lines(kind, job.job_id)), has_output)


def _name(job: domain.Job, what: str) -> str:
    return f"{what} ({texts.one_line(job.spec.name)})" if job.spec.name else what


def _where(attempt: AttemptRecord | None) -> str:
    return f" on {', '.join(dict.fromkeys(attempt.hosts))}" if attempt is not None else ""


def _after(occasion: Occasion) -> str:
    job, attempt = occasion.job, occasion.attempt
    since_s, to_s = job.first_start_s, job.ended_s
    if occasion.kind == "preempt" and attempt is not None:
        since_s, to_s = attempt.launched_s, attempt.ended_s
    return f" after {units.duration(to_s - since_s)}" if since_s is not None and to_s is not None else ""


def _how_it_goes_on(job: domain.Job) -> str:
    step = job.durable_step
    return f"it goes on from step {step}" if step else "it begins anew: no step of it is saved"


def _next_lines(kind: domain.NoticeKind, job_id: domain.JobId) -> tuple[str, ...]:
    return ("", *(f"  {each.format(job=job_id)}" for each in TEXTS[kind][1:]))


# --- Arrays -----------------------------------------------------------------------------------------


def _array_text(occasion: Occasion, engine: Engine, past_tasks: PastTasks) -> NoticeText | None:
    kind, job, attempt, why, _ = occasion
    array = domain.array_of(job.job_id)
    what, next_lines = _name(job, f"array {array}"), _next_lines(kind, job.job_id)
    reason = texts.one_line(domain.render_whole(why or job.reason))
    if kind in ("end", "fail") and not any(
        _tasks(engine, array, lambda task: task.phase not in domain.ENDED)
    ):
        return _array_end(what, array, engine, past_tasks)
    if kind == "fail" and _is_first_failure(job, engine, past_tasks):
        lines = (reason, "the others go on; further failures are told at the end", *next_lines)
        return NoticeText(f"{what}: task {job.job_id} failed{_where(attempt)}, the first", lines, True)
    if kind == "idle":
        return NoticeText(
            f"{what}: task {job.job_id} holds devices and uses none", (reason, *next_lines), True
        )
    if kind == "start" and job.number == int(array):
        return NoticeText(f"{what} started{_where(attempt)}", (reason, *next_lines), False)
    return None


def _tasks(engine: Engine, array: str, where: Callable[[domain.Job], bool]) -> Iterator[domain.Job]:
    """The remembered tasks of an array for which something holds."""
    prefix = f"{array}_"
    return (job for job_id, job in engine.jobs.items() if job_id.startswith(prefix) and where(job))


def _is_first_failure(job: domain.Job, engine: Engine, past_tasks: PastTasks) -> bool:
    array, failed = domain.array_of(job.job_id), domain.Phase.FAILED
    others = _tasks(engine, array, lambda task: task.phase is failed and task is not job)
    return next(others, None) is None and all(past.job.phase is not failed for past in past_tasks(array))


def _array_end(what: str, array: str, engine: Engine, past_tasks: PastTasks) -> NoticeText:
    tasks = [*(past.job for past in past_tasks(array)), *_tasks(engine, array, lambda task: True)]
    counts = Counter(task.phase for task in tasks)
    failed = [task for task in tasks if task.phase is domain.Phase.FAILED]
    shown = [
        f"{task.job_id}: {texts.one_line(domain.render_whole(task.reason))}" for task in failed[:FAILED_SHOWN]
    ]
    left_out = [f"and {len(failed) - FAILED_SHOWN} more"] if len(failed) > FAILED_SHOWN else []
    go_on = ("", f"  cotenant show {array}", *(f"  cotenant logs {task.job_id}" for task in failed[:1]))
    told = ", ".join(f"{counts[phase]} {phase.value}" for phase in domain.Phase if counts[phase])
    return NoticeText(f"{what} ended: {told}", (*shown, *left_out, *go_on), False)
