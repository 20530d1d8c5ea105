"""Follow the cluster while it works, and say what changes, each line with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from cotenant.controller.client import Client
from cotenant.controller.domain import ENDED, JobId, Phase
from cotenant.controller.wire import Jobs, JobView, ListJobs

POLL_S = 0.25


class TooSlow(Exception):
    """The demo's jobs did not get where they should in time; the text says where they stand."""


class QueueWatcher:
    """Polls the queue and tells of each job's steps on its way."""

    def __init__(self, client: Client, say: Callable[[str], None], names: dict[JobId, str]) -> None:
        self._client, self._say, self._names = client, say, names
        self._seen: dict[JobId, tuple[Phase, int]] = {}
        self.jobs: dict[JobId, JobView] = {}

    def look(self) -> Jobs:
        """One round: ask, tell what is new, remember."""
        reply = self._client.ask(ListJobs(include_ended=True))
        for job in sorted(reply.jobs, key=lambda j: int(j.job_id)):
            self.jobs[job.job_id] = job
            now = (job.phase, job.attempt)
            if self._seen.get(job.job_id) != now:
                self._seen[job.job_id] = now
                self._say(self._in_words(job))
        return reply

    def until(self, true: Callable[[dict[JobId, JobView]], bool], timeout_s: float) -> None:
        """Look until `true` holds.

        Raises:
            TooSlow: it does not hold after `timeout_s`, or a job failed meanwhile.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.look()
            failed = [j for j in self.jobs.values() if j.phase in (Phase.FAILED, Phase.CANCELLED, Phase.HELD)]
            if failed:
                raise TooSlow("; ".join(f"job {j.job_id} {j.phase}: {j.reason}" for j in failed))
            if true(self.jobs):
                return
            if time.monotonic() > deadline_s:
                stand = ", ".join(f"{j.job_id} {j.phase}" for j in self.jobs.values())
                raise TooSlow(f"not there after {timeout_s:.0f} s: {stand}")
            time.sleep(POLL_S)

    def _in_words(self, job: JobView) -> str:
        who = f"{self._names.get(job.job_id, job.name)} ({job.job_id})"
        where = " + ".join(device.rpartition("/")[2] for device in job.devices)
        match job.phase:
            case Phase.LOADING:
                again = f", attempt {job.attempt}, from step {job.durable_step}" if job.attempt > 1 else ""
                beside = "".join(f" beside {self._names.get(other, other)}" for other in job.co_tenants)
                split = f", s = {job.accumulation_steps}" if job.accumulation_steps > 1 else ""
                return f"{who} starts on {where}{beside}{split}{again}: {job.reason}"
            case Phase.RUNNING:
                return f"{who} trains: first step after {job.load_s:.1f} s of loading"
            case Phase.CHECKPOINTING:
                return f"{who} saves and leaves: {job.reason}"
            case Phase.DONE:
                return f"{who} is done: {job.run_s:.1f} s of training"
            case Phase.QUEUED | Phase.RESERVED:
                return f"{who} waits: {job.reason}"
            case _:
                return f"{who} is {job.phase}: {job.reason}"


def all_ended(jobs: dict[JobId, JobView], wanted: Iterable[JobId]) -> bool:
    return all(job_id in jobs and jobs[job_id].phase in ENDED for job_id in wanted)
