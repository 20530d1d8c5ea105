"""From the attempts of jobs, and so from the controller's answer, to a timeline. Pure.

Rule: what a picture shows of an attempt follows from five times: launched, first step, asked to leave, ended,
and until when its job is known. All of them are on one clock, and only what lies in the window is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cotenant.controller.domain import Phase
from cotenant.controller.timeline import timeline
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

SHORTEST_WAIT_S: Final = 0.2


class TimeWindow(NamedTuple):
    """A span of time, from when to when."""

    begin_s: float
    end_s: float


class AttemptTimes(NamedTuple):
    """The times of one attempt; None: not yet, or never."""

    attempt: int
    devices: tuple[str, ...]
    launched_s: float
    first_step_s: float | None
    """Or since when it counts as running without one."""
    stop_requested_s: float | None
    ended_s: float | None
    preempted: bool = False
    why: str = ""
    """Of a preemption for no other job."""
    finished: bool = False
    accumulation_steps: int = 1
    resumed_from_step: int | None = None


class JobTimes(NamedTuple):
    """A job and all of its attempts, in order."""

    job: str
    name: str
    submitted_s: float
    known_to_s: float
    """Its end, or now."""
    has_ended: bool
    attempts: Sequence[AttemptTimes]


def attempt_times(views: Sequence[wire.AttemptView]) -> list[AttemptTimes]:
    return [
        AttemptTimes(
            attempt=view.attempt,
            devices=view.devices,
            launched_s=view.launched_s,
            first_step_s=view.trains_since_s,
            stop_requested_s=view.stop_requested_s,
            ended_s=view.ended_s,
            preempted=view.outcome == "preempted",
            why=_why(view),
            finished=view.outcome == "finished",
            accumulation_steps=view.accumulation_steps,
            resumed_from_step=view.start_step if view.attempt > 1 else None,
        )
        for view in views
    ]


def _why(view: wire.AttemptView) -> str:
    if view.cause in ("", "preempted"):
        return ""
    reason, _, _ = view.reason.partition(";")  # What follows is what was saved.
    return f"{reason}, by hand" if view.cause == "by-hand" else reason


def timeline_of(
    jobs: Sequence[JobTimes],
    devices: Sequence[timeline.DeviceRow],
    policies: Sequence[tuple[float, str]],
    *,
    title: str,
    subtitle: str = "",
    window: TimeWindow | None = None,
    local_utc_offset_s: float | None = None,
) -> timeline.Timeline:
    """Builds the timeline of jobs and their attempts.

    Args:
        devices: rows; those that only attempts know are added.
        policies: from when each decided.
        window: what is shown; None: everything, from the first submission on.
        local_utc_offset_s: for an axis with the time of day, where times are seconds since 1970.
    """
    whole = TimeWindow(
        min((job.submitted_s for job in jobs), default=0.0),
        max((job.known_to_s for job in jobs), default=0.0),
    )
    begin_s, end_s = shown = window or whole
    attempts = [(job, attempt) for job in jobs for attempt in job.attempts]
    rows = {row.device: row for row in devices}
    for _, attempt in attempts:
        for device in attempt.devices:
            rows.setdefault(device, timeline.DeviceRow(device=device, about="not here any more"))
    preempted = _preemptions(attempts, shown)
    return timeline.Timeline(
        title=title,
        subtitle=subtitle,
        devices=tuple(rows.values()) or (timeline.DeviceRow(device="no device"),),
        jobs=tuple(timeline.JobName(job=job.job, name=job.name) for job in jobs),
        segments=tuple(each for job, attempt in attempts for each in _segments(job, attempt, shown)),
        attempts=tuple(
            timeline.AttemptSpan(
                job=job.job,
                attempt=attempt.attempt,
                accumulation_steps=attempt.accumulation_steps,
                resumed_from_step=attempt.resumed_from_step,
            )
            for job, attempt in attempts
        ),
        waits=tuple(wait for job in jobs for wait in _waits(job, shown)),
        preemptions=tuple(preempted),
        policies=tuple(_policies(policies, shown)),
        window_s=end_s - begin_s if window is not None else 0.0,
        local_zero_s=None if local_utc_offset_s is None else begin_s + local_utc_offset_s,
    )


def _end_s(job: JobTimes, attempt: AttemptTimes) -> float:
    return job.known_to_s if attempt.ended_s is None else attempt.ended_s


def _asked_s(job: JobTimes, attempt: AttemptTimes) -> float:
    """When it was asked to leave, or its end."""
    return _end_s(job, attempt) if attempt.stop_requested_s is None else attempt.stop_requested_s


def _segments(job: JobTimes, attempt: AttemptTimes, window: TimeWindow) -> Iterator[timeline.Segment]:
    """What the attempt did on each of its devices."""
    end_s, asked_s = _end_s(job, attempt), _asked_s(job, attempt)
    trained_s = end_s if attempt.first_step_s is None else attempt.first_step_s
    futile = attempt.preempted and attempt.first_step_s is None
    spans: tuple[tuple[timeline.SegmentKind, float, float], ...] = (
        ("futile" if futile else "loading", attempt.launched_s, min(trained_s, asked_s)),
        ("running", trained_s, asked_s),
        ("checkpointing", asked_s, end_s),
    )
    seen = [
        (phase, max(from_s, window.begin_s), min(to_s, window.end_s))
        for phase, from_s, to_s in spans
        if min(to_s, window.end_s) > max(from_s, window.begin_s)
    ]
    for device in attempt.devices:
        for phase, from_s, to_s in seen:
            yield timeline.Segment(
                job=job.job,
                attempt=attempt.attempt,
                device=device,
                phase=phase,
                start_s=from_s - window.begin_s,
                end_s=to_s - window.begin_s,
            )


def _waits(job: JobTimes, window: TimeWindow) -> Iterator[timeline.WaitSpan]:
    """The times without devices that are long enough to see."""
    since_s = job.submitted_s
    spans = []
    for attempt in job.attempts:
        spans.append((since_s, attempt.launched_s))
        since_s = _end_s(job, attempt)
    if not job.has_ended:
        spans.append((since_s, job.known_to_s))
    for from_s, to_s in spans:
        from_s, to_s = max(from_s, window.begin_s), min(to_s, window.end_s)
        if to_s - from_s > SHORTEST_WAIT_S:
            yield timeline.WaitSpan(job=job.job, start_s=from_s - window.begin_s, end_s=to_s - window.begin_s)


def _preemptions(
    attempts: Sequence[tuple[JobTimes, AttemptTimes]], window: TimeWindow
) -> Iterator[timeline.Preemption]:
    """Yields who took whose place: the job that started on the device when the victim had left, unless the
    victim left for no other job, or was itself the next."""
    starts: dict[str, list[tuple[float, str]]] = {}
    for job, attempt in attempts:
        for device in attempt.devices:
            starts.setdefault(device, []).append((attempt.launched_s, job.job))
    for job, attempt in attempts:
        asked_s = _asked_s(job, attempt)
        if not attempt.preempted or not window.begin_s <= asked_s <= window.end_s or not attempt.devices:
            continue
        device, end_s = attempt.devices[0], _end_s(job, attempt)
        after = [each for each in starts[device] if each[0] >= end_s - 1e-6]
        newcomer = min(after)[1] if after and not attempt.why else ""
        yield timeline.Preemption(
            at_s=asked_s - window.begin_s,
            device=device,
            victim=job.job,
            newcomer=newcomer if newcomer != job.job else "",
            why=attempt.why,
        )


def _policies(policies: Sequence[tuple[float, str]], window: TimeWindow) -> Iterator[timeline.PolicyChange]:
    """Yields the policies that decided in the window; the first one from the window's beginning on."""
    ordered = sorted(policies, key=lambda each: each[0])
    before = [each for each in ordered if each[0] <= window.begin_s][-1:]
    inside = [each for each in ordered if window.begin_s < each[0] <= window.end_s]
    for at_s, policy in [*before, *inside]:
        yield timeline.PolicyChange(at_s=max(0.0, at_s - window.begin_s), policy=policy)


def timeline_of_view(view: wire.TimelineView, *, local_utc_offset_s: float) -> timeline.Timeline:
    """The whole window, with the time of day below it."""
    window = TimeWindow(wall_s(view.begin_at), wall_s(view.end_at))
    jobs = [
        JobTimes(
            job=job.job_id,
            name=job.name or job.job_id,
            submitted_s=wall_s(job.submitted_at),
            known_to_s=wall_s(job.ended_at) if job.ended_at is not None else window.end_s,
            has_ended=job.ended_at is not None,
            attempts=[_assume_first_step(job, each) for each in attempt_times(job.attempts)],
        )
        for job in view.jobs
    ]
    left_out = f"; {view.more:,} more are not in it" if view.more else ""
    return timeline_of(
        jobs,
        [timeline.DeviceRow(device=each.device_id, about=each.about) for each in view.devices],
        [(wall_s(each.from_at), each.policy) for each in view.policies],
        title="Who held which device",
        subtitle=f"{len(jobs):,} job{'' if len(jobs) == 1 else 's'} in this time{left_out}",
        window=window,
        local_utc_offset_s=local_utc_offset_s,
    )


def _assume_first_step(job: wire.TimelineJob, attempt: AttemptTimes) -> AttemptTimes:
    """A script that tells no steps has trained all the same, if it runs or has finished: how long it loaded
    nobody knows."""
    runs = attempt.ended_s is None and job.phase is Phase.RUNNING
    if attempt.first_step_s is None and (runs or attempt.finished):
        return attempt._replace(first_step_s=attempt.launched_s)
    return attempt
