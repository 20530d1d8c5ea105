"""Devices that are kept for promised jobs, and whom one may move for them.

Rule: what is kept follows from the state, the time and what was kept before, so that recovery arrives at the
same; no policy is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

import msgspec

from cotenant.controller.domain import QUEUED, Job, JobId
from cotenant.controller.engine.stages.free_times import (
    NEAR_S,
    CanMove,
    FreeTimes,
    KeptDevices,
    first_fit,
    free_times,
    need_s,
)
from cotenant.controller.engine.state.ledger import Ledger

GRACE_S: Final = 1.0
"""An end up to this much later than promised is not late."""


class OpenPromise(msgspec.Struct, kw_only=True):
    """The promise to a job that has not ended."""

    until_s: float
    need_s: float
    """What it was expected to need, loading included, when it was promised."""
    kept: KeptDevices | None = None
    """Devices reserved for it while it waits."""
    is_broken: bool = False


class SavedPromises(msgspec.Struct, kw_only=True):
    """All promises as a value."""

    open: dict[JobId, OpenPromise] = {}
    kept: int = 0
    broken: int = 0
    void: int = 0
    alarm_s: float = -inf
    """The next alarm that is scheduled."""


class PromiseRoom:
    """The devices for promised jobs, as of one state of the ledger."""

    def __init__(self, ledger: Ledger, saved: SavedPromises, margin: float, *, preempts: bool) -> None:
        """Takes the ledger and the saved promises. `margin`: what a job is allowed beyond what it needs, as a
        factor; `preempts`: others may be preempted for a promised job, since the policy in force preempts."""
        self._ledger, self._saved, self._margin, self._preempts = ledger, saved, margin, preempts

    def reservations(self) -> dict[JobId, KeptDevices]:
        """Devices for promised jobs that wait: the same as before where that still works, else new ones, the
        earliest promise first."""
        ledger, jobs = self._ledger, self._ledger.jobs
        waiting = [
            (promise.until_s, job.number, job, promise)
            for job_id, promise in self._saved.open.items()
            if (job := jobs.get(job_id)) is not None and job.phase is QUEUED
        ]
        found: dict[JobId, KeptDevices] = {}
        again: list[tuple[float, int, Job, OpenPromise]] = []
        times: dict[int, FreeTimes] = {}
        for each in waiting:
            job, kept = each[2], each[3].kept
            free = times.get(job.spec.priority)
            if free is None:
                free = times[job.spec.priority] = self._free_for(job)
            if kept is not None and self._holds(kept, free):
                found[job.job_id] = kept
            else:
                again.append(each)
        for until_s, _, job, _ in sorted(again, key=lambda each: each[:2]):
            needs_s = need_s(job, ledger.now_s)
            kept = (
                None if needs_s is None else self.find(job, needs_s * self._margin, until_s, found.values())
            )
            if kept is not None:
                found[job.job_id] = kept
        return found

    def _holds(self, kept: KeptDevices, free: FreeTimes) -> bool:
        if kept.from_s < self._ledger.now_s - NEAR_S:
            return False
        return all(free.get(each, inf) <= kept.from_s + NEAR_S for each in kept.devices)

    def find(
        self, job: Job, needs_s: float, until_s: float, others: Iterable[KeptDevices]
    ) -> KeptDevices | None:
        """The first fit without making room, if that is early enough; else the earliest fit."""
        others = list(others)
        quiet = first_fit(self._ledger, job, needs_s, free_times(self._ledger), others)
        if not self._preempts or (quiet is not None and quiet.until_s <= until_s + NEAR_S):
            return quiet
        loud = first_fit(self._ledger, job, needs_s, self._free_for(job), others)
        if quiet is None or (loud is not None and loud.until_s < quiet.until_s):
            return loud
        return quiet

    def _free_for(self, job: Job) -> FreeTimes:
        can_move: CanMove | None = (lambda other: self.can_move(other, job)) if self._preempts else None
        return free_times(self._ledger, can_move)

    def can_move(self, job: Job, newcomer: Job) -> bool:
        """Whether a job may be preempted for the sake of a promise."""
        return (
            self._preempts
            and job.preemptible
            and not job.aged
            and job.job_id not in self._saved.open
            and job.spec.priority <= newcomer.spec.priority
        )
