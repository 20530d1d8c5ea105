"""A picture of jobs on their way, from the controller's answers on each of them."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.controller.timeline import DeviceRow, JobTimes, Timeline, attempt_times, timeline_of
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s


def picture_of(
    shown: Sequence[wire.Shown],
    nodes: Sequence[wire.NodeView],
    policies: Sequence[tuple[float, str]],
    subtitle: str,
) -> Timeline:
    """The content of the timeline picture; time 0 is the first submission."""
    jobs = [
        JobTimes(
            job=s.job.name,
            name=s.job.name,
            submitted_s=s.job.submitted_s,
            known_to_s=max((a.ended_s for a in s.attempts if a.ended_s is not None), default=wall_s(s.now)),
            has_ended=True,
            attempts=attempt_times(s.attempts),
        )
        for s in shown
    ]
    devices = [
        DeviceRow(device=d.device_id, about=f"{len(d.cores)} core, {d.memory_mib} MiB declared")
        for node in nodes
        for d in node.devices
    ]
    return timeline_of(jobs, devices, policies, title="cotenant demo", subtitle=subtitle)
