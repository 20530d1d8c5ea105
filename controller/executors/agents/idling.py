"""From what hosts say in heartbeats to events about idle jobs.

Rule: pure, and makes events only of changes: a stage that an idle job has come to, and that it works again.
What was told before is in the job's record, so that a controller which starts anew goes on where it was. A
gang is idle while each of its hosts has said so lately.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import IdleReading

OLD_S: Final = 10.0
"""What a host has said longer ago says nothing of now."""


class _Heard(NamedTuple):
    """What a host has said last of an attempt."""

    attempt: domain.AttemptNo
    reading: IdleReading
    at_s: float


class IdleFilter:
    """Decides which heartbeats make an event."""

    def __init__(self) -> None:
        self._heard: dict[domain.JobId, dict[domain.HostId, _Heard]] = {}

    def take(
        self, job: domain.Job, host_id: domain.HostId, reading: IdleReading, now_s: float
    ) -> ev.IdleSeen | None:
        """Takes in the reading of a job on devices, from one of its hosts."""
        attempt, spell = job.attempt.number, job.attempt.idle
        steps = domain.idle_steps(job.spec.idle)
        if not steps:
            return None
        said = self._heard.setdefault(job.job_id, {})
        said[host_id] = _Heard(attempt, reading, now_s)
        known = {
            host: each
            for host, each in said.items()
            if host in job.attempt.hosts_left and each.attempt == attempt and now_s - each.at_s <= OLD_S
        }
        if job.phase is not domain.Phase.RUNNING:
            return None
        if spell is not None and _works_since(reading, spell, now_s):
            return ev.IdleSeen(job_id=job.job_id, attempt=attempt, since_s=None)
        if len(known) < len(job.attempt.hosts_left):
            return None
        idle_s = min(each.reading.idle_s for each in known.values())
        stage = domain.next_stage(steps, spell, idle_s)
        if not stage:
            return None
        since_s = now_s - idle_s if spell is None else spell.since_s
        return ev.IdleSeen(job_id=job.job_id, attempt=attempt, since_s=since_s, stage=stage)

    def forget(self, gone: list[domain.JobId]) -> None:
        for job_id in gone:
            self._heard.pop(job_id, None)


def _works_since(reading: IdleReading, spell: domain.IdleSpell, now_s: float) -> bool:
    """Whether it has worked in the spell: what was heard late may seem to be a little after its beginning."""
    if reading.active_ago_s is None:
        return False
    return now_s - reading.active_ago_s > (spell.since_s + spell.told_s) / 2.0


def idle_words(event: ev.IdleSeen, now_s: float) -> str:
    """What the user of an idle job is told in its log; empty: nothing."""
    if event.since_s is None or event.stage in ("", "stop"):
        return ""
    return f"this job {domain.render(domain.idle_reason(event.stage, now_s - event.since_s))}"
