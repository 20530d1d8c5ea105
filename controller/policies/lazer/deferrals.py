"""DWQ and DRQ: newcomers whose preemption is put off, and the running jobs chosen to make room for them.

Rule: an entry counts only while it is still true: the newcomer has been queued without a break, and the
victim is in the attempt in which it was chosen. So nobody has to tell this module that a newcomer was
cancelled or held, or that a victim ended, was lost or started again; it scans nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from cotenant.controller.domain import AttemptNo, Job, JobId, Phase, View


class Deferral(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One newcomer and its victims."""

    until_s: float
    number: int
    """The newcomer's number: deferrals that end together are decided in order of arrival."""
    job_id: JobId
    since_s: float
    """The time since which the newcomer has been queued."""
    victims: tuple[tuple[JobId, AttemptNo], ...]


class Deferrals:
    def __init__(self, deferrals: Iterable[Deferral] = ()) -> None:
        self._by_job: dict[JobId, Deferral] = {}
        self._for_whom: dict[tuple[JobId, AttemptNo], JobId] = {}
        """Victim -> newcomer."""
        self._ends: list[tuple[float, int, JobId]] = []
        for deferral in deferrals:
            self.add(deferral)

    def save(self) -> list[Deferral]:
        return sorted(self._by_job.values(), key=lambda d: (d.until_s, d.number))

    def add(self, deferral: Deferral) -> None:
        self._drop(deferral.job_id)
        for victim in deferral.victims:
            if victim in self._for_whom:  # Of a newcomer that does not wait any more, or it were not offered.
                self._drop(self._for_whom[victim])
        self._by_job[deferral.job_id] = deferral
        for victim in deferral.victims:
            self._for_whom[victim] = deferral.job_id
        heapq.heappush(self._ends, (deferral.until_s, deferral.number, deferral.job_id))

    def end_due(self, now_s: float) -> None:
        """Forget those whose time has come: they have just been decided."""
        while self._ends and self._ends[0][0] <= now_s:
            until_s, _, job_id = heapq.heappop(self._ends)
            deferral = self._by_job.get(job_id)
            if deferral is not None and deferral.until_s == until_s:
                self._drop(job_id)

    def _drop(self, job_id: JobId) -> None:
        deferral = self._by_job.pop(job_id, None)
        for victim in deferral.victims if deferral is not None else ():
            del self._for_whom[victim]

    # --- Reading -----------------------------------------------------------------------------------

    def due(self, view: View) -> list[Job]:
        """Newcomers whose time has come and who still wait, in order."""
        if not self._ends or self._ends[0][0] > view.now_s:
            return []
        ended = sorted(
            (d for d in self._by_job.values() if d.until_s <= view.now_s and still_waits(view, d)),
            key=lambda d: (d.until_s, d.number),
        )
        return [view.jobs[d.job_id] for d in ended]

    def of(self, view: View, job_id: JobId) -> Deferral | None:
        """The deferral of a job in DWQ: one that waits, and whose time has not come."""
        deferral = self._by_job.get(job_id)
        if deferral is None or deferral.until_s <= view.now_s or not still_waits(view, deferral):
            return None
        return deferral

    def holds(self, view: View, job: Job) -> bool:
        """Whether a running job is in DRQ."""
        newcomer_id = self._for_whom.get((job.job_id, job.attempt))
        return newcomer_id is not None and self.of(view, newcomer_id) is not None


def still_waits(view: View, deferral: Deferral) -> bool:
    job = view.jobs.get(deferral.job_id)
    return job is not None and job.phase is Phase.QUEUED and job.phase_since_s == deferral.since_s
