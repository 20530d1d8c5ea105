"""What went wrong while a journal was written, and does not in simulations: failures, devices out of work.

Rule: counted and reported, never corrected for. A simulation of the same jobs in which nothing fails promises
too much, and a reader of its numbers has to know by how much.
"""

from __future__ import annotations

from typing import Final

from cotenant.controller.domain import HostState, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine

WORTH_A_WORD: Final = 0.005
"""Shares of the devices' time below this are not reported."""
_ABOUT_HOSTS: Final = (
    ev.HostJoined,
    ev.HostSilent,
    ev.HostBack,
    ev.HostLost,
    ev.HostDrained,
    ev.HostResumed,
)


class Troubles:
    """Observes the engine after every event of the part asked for."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s
        self._failed: set[tuple[JobId, int]] = set()
        self._since_s: float | None = None
        """When the number of devices that take work was looked at last."""
        self._usable = 0
        self._first_s = begin_s
        self._usable_s = 0.0
        """Devices times seconds in which they took work."""

    def observe(self, engine: Engine, event: ev.AnyEvent) -> None:
        failed = isinstance(event, ev.AttemptEnded) and event.outcome == "infra-failed"
        if isinstance(event, ev.AttemptEnded) and failed and engine.now_s >= self._begin_s:
            self._failed.add((event.job_id, event.attempt))
        # A host becomes suspect with a failure, and is itself again with a first step.
        if failed or isinstance(event, (*_ABOUT_HOSTS, ev.FirstStepDone)):
            self._count(engine.now_s)
            self._usable = usable(engine)

    def lost(self, engine: Engine, job_id: JobId) -> None:
        """A job's attempt was lost with its host."""
        job = engine.jobs.get(job_id)
        if job is not None and engine.now_s >= self._begin_s:
            self._failed.add((job_id, job.attempt))

    def notes(self, devices: int, end_s: float) -> list[str]:
        """`devices`: as many as are simulated."""
        self._count(end_s)
        found = []
        if self._failed:
            jobs = len({job_id for job_id, _ in self._failed})
            found.append(
                f"{len(self._failed):,} attempt{'s' * (len(self._failed) != 1)} of {jobs:,} "
                f"job{'s' * (jobs != 1)} failed by the infrastructure: what was lost, tried again and waited "
                "out is in what happened alone; in the simulations nothing fails"
            )
        all_s = devices * (end_s - self._first_s)
        missing = 1.0 - self._usable_s / all_s if all_s > 0.0 else 0.0
        if missing > WORTH_A_WORD:
            found.append(
                f"{100 * missing:.0f} % of the devices' time they took no work (not there, silent, drained, "
                "suspect or unhealthy); in the simulations all are there from the beginning to the end"
            )
        return found

    def _count(self, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = self._first_s = max(self._begin_s, now_s)
        elif now_s > self._since_s:
            self._usable_s += self._usable * (now_s - self._since_s)
            self._since_s = now_s


def usable(engine: Engine) -> int:
    """Devices that would get new work."""
    return sum(
        device.healthy
        for host in engine.hosts.values()
        if host.state is HostState.OK and not host.lost
        for device in host.report.devices
    )
