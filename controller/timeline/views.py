"""From the controller's answer to a timeline. Pure."""

from __future__ import annotations

from cotenant.controller.domain import Phase
from cotenant.controller.timeline.attempts import (
    AttemptTimes,
    JobTimes,
    TimeWindow,
    attempt_times,
    timeline_of,
)
from cotenant.controller.timeline.timeline import DeviceRow, Timeline
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s


def timeline_of_view(view: wire.TimelineView, *, local_utc_offset_s: float) -> Timeline:
    """The whole window, with the time of day below it."""
    window = TimeWindow(wall_s(view.begin_at), wall_s(view.end_at))
    jobs = [
        JobTimes(
            job=job.job_id,
            name=job.name or job.job_id,
            submitted_s=wall_s(job.submitted_at),
            known_to_s=wall_s(job.ended_at) if job.ended_at is not None else window.end_s,
            has_ended=job.ended_at is not None,
            attempts=[_trained(job, each) for each in attempt_times(job.attempts)],
        )
        for job in view.jobs
    ]
    left_out = f"; {view.more:,} more are not in it" if view.more else ""
    return timeline_of(
        jobs,
        [DeviceRow(device=each.device_id, about=each.about) for each in view.devices],
        [(wall_s(each.from_at), each.policy) for each in view.policies],
        title="Who held which device",
        subtitle=f"{len(jobs):,} job{'' if len(jobs) == 1 else 's'} in this time{left_out}",
        window=window,
        local_utc_offset_s=local_utc_offset_s,
    )


def _trained(job: wire.TimelineJob, attempt: AttemptTimes) -> AttemptTimes:
    """A script that tells no steps has trained all the same, if it runs or has finished: how long it loaded
    nobody knows."""
    runs = attempt.ended_s is None and job.phase is Phase.RUNNING
    if attempt.first_step_s is None and (runs or attempt.finished):
        return attempt._replace(first_step_s=attempt.launched_s)
    return attempt
