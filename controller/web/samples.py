"""How a job's loss and step time went while somebody could have looked: the controller keeps the newest only.

Rule: bounded. A job has at most `POINTS_MAX` points; when there are more, every other one goes, so that the
oldest stays. The job that was seen longest ago is forgotten when there are `JOBS_MAX` others.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from cotenant.controller.domain import JobId
from cotenant.controller.wire import clients as wire

POINTS_MAX: Final = 1_000
JOBS_MAX: Final = 500


class StepSample(NamedTuple):
    at_s: float
    """Seconds since the epoch."""
    step: int
    loss: float | None
    step_s: float | None


class Samples:
    """The samples of all jobs that were seen running. Threads may share the object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[JobId, list[StepSample]] = {}

    def note(self, at_s: float, job: wire.JobView) -> None:
        """A job that has made no step since is as it was."""
        with self._lock:
            known = self._of.pop(job.job_id, [])
            self._of[job.job_id] = known
            if job.step and (not known or known[-1].step != job.step):
                known.append(StepSample(at_s, job.step, job.loss, job.step_s))
            if len(known) > POINTS_MAX:
                del known[1:-1:2]
            while len(self._of) > JOBS_MAX:
                del self._of[next(iter(self._of))]

    def samples_of(self, job_id: JobId) -> tuple[StepSample, ...]:
        with self._lock:
            return tuple(self._of.get(job_id, ()))
