"""What happened on the devices in some time. Pure reading: the history's attempts, bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from cotenant.controller.api.queries import Queries, within_message
from cotenant.controller.api.views import Now, attempt_view
from cotenant.controller.domain import ENDED, Device, Job
from cotenant.controller.engine import AttemptRecord
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire

JOBS_MAX: Final = 10_000


class TimelineRequests:
    """Who held what, and who waited."""

    def __init__(self, core: Core, reading: Queries) -> None:
        self._core, self._reading = core, reading

    def timeline(self, request_id: int, request: wire.GetTimeline, who: Identity) -> wire.Timelined:
        state, now = self._core.state, self._reading.now()
        begin_s, end_s = (now.now_s - max(0.0, ago_s) for ago_s in (request.since_s, request.until_s))
        held: list[Job] = []
        waited: list[Job] = []
        for job in state.engine.jobs.values():
            if job.submitted_s <= end_s and (math.inf if job.ended_s is None else job.ended_s) >= begin_s:
                records = state.history.attempts(job.job_id)
                (held if any(True for _ in _seen(records, begin_s, end_s)) else waited).append(job)
        chosen = [*reversed(held), *waited][: min(max(1, request.limit), JOBS_MAX)]
        jobs = within_message(self._job(job, begin_s, end_s, now) for job in chosen)
        engine = state.engine
        view = wire.TimelineView(
            begin_at=now.utc(begin_s),
            end_at=now.utc(max(begin_s, end_s)),
            devices=tuple(
                wire.TimelineDevice(device_id=device.device_id, about=about(device))
                for _, host in sorted(engine.hosts.items())
                for device in host.report.devices
            ),
            jobs=tuple(sorted(jobs, key=lambda job: engine.jobs[job.job_id].number)),
            policies=tuple(
                wire.PolicySince(policy=each.label, from_at=now.utc(each.from_s))
                for each in state.history.policies()
                if each.from_s <= end_s
            ),
            more=len(held) + len(waited) - len(jobs),
        )
        return wire.Timelined(request_id=request_id, timeline=view, now=now.at)

    def _job(self, job: Job, begin_s: float, end_s: float, now: Now) -> wire.TimelineJob:
        records = self._core.state.history.attempts(job.job_id)
        seen = list(_seen(records, begin_s, end_s))
        before = [each for each in records if each.ended_s is not None and each.ended_s < begin_s][-1:]
        return wire.TimelineJob(
            job_id=job.job_id,
            name=job.spec.name,
            user=job.spec.user,
            phase=job.phase,
            submitted_at=now.utc(job.submitted_s),
            ended_at=now.utc_if(job.ended_s if job.phase in ENDED else None),
            attempts=tuple(attempt_view(each, now) for each in [*before, *seen]),
        )


def _seen(records: Sequence[AttemptRecord], begin_s: float, end_s: float) -> Iterator[AttemptRecord]:
    for each in records:
        if each.launched_s <= end_s and (each.ended_s is None or each.ended_s >= begin_s):
            yield each


def about(device: Device) -> str:
    """In a few words: there is little room beside a row."""
    cores = len(device.cores)
    what = f"{cores} core{'' if cores == 1 else 's'}" if device.kind == "cpu" else device.type
    return f"{what}, {device.memory_mib} MiB"
