"""Devices that are kept for promised jobs, whom one may move for them, and what could be promised besides.

Rule: what is kept follows from the state, the time and what was kept before, so that recovery arrives at the
same; no policy is asked.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from math import inf, isfinite
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.engine.stages import free_times
from cotenant.controller.engine.stages.free_times import NEAR_S, CanMove, FreeTimes, KeptDevices
from cotenant.controller.engine.state.estimating import first_estimate, known_profile
from cotenant.controller.engine.state.ledger import Ledger

AHEAD_MAX: Final = 2_000
"""Waiting jobs that are looked at for one promise."""
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

    open: dict[domain.JobId, OpenPromise] = {}
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

    def reservations(self) -> dict[domain.JobId, KeptDevices]:
        """Devices for promised jobs that wait: the same as before where that still works, else new ones, the
        earliest promise first."""
        ledger, jobs = self._ledger, self._ledger.jobs
        waiting = [
            (promise.until_s, job.number, job, promise)
            for job_id, promise in self._saved.open.items()
            if (job := jobs.get(job_id)) is not None and job.phase is domain.QUEUED
        ]
        found: dict[domain.JobId, KeptDevices] = {}
        again: list[tuple[float, int, domain.Job, OpenPromise]] = []
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
            needs_s = free_times.need_s(job, ledger.now_s)
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
        self, job: domain.Job, needs_s: float, until_s: float, others: Iterable[KeptDevices]
    ) -> KeptDevices | None:
        """The first fit without making room, if that is early enough; else the earliest fit."""
        others = list(others)
        quiet = free_times.first_fit(self._ledger, job, needs_s, free_times.when_free(self._ledger), others)
        if not self._preempts or (quiet is not None and quiet.until_s <= until_s + NEAR_S):
            return quiet
        loud = free_times.first_fit(self._ledger, job, needs_s, self._free_for(job), others)
        if quiet is None or (loud is not None and loud.until_s < quiet.until_s):
            return loud
        return quiet

    def _free_for(self, job: domain.Job) -> FreeTimes:
        can_move: CanMove | None = (lambda other: self.can_move(other, job)) if self._preempts else None
        return free_times.when_free(self._ledger, can_move)

    def can_move(self, job: domain.Job, newcomer: domain.Job) -> bool:
        """Whether a job may be preempted for the sake of a promise."""
        return (
            self._preempts
            and job.preemptible
            and not job.aged
            and job.job_id not in self._saved.open
            and job.spec.priority <= newcomer.spec.priority
        )

    # --- Promises that could be made ---------------------------------------------------------------

    def offer(self, specs: Sequence[domain.JobSpec]) -> list[float] | domain.Reason:
        """Returns by when each of these jobs could be promised to end if it came now, in seconds of the
        journal; or why nothing can be promised. Changes nothing."""
        reservations = self.reservations()
        ends: list[float] = []
        for number, spec in enumerate(specs):
            job = self._probe(spec, self._ledger.next_number + number)
            found = self._earliest(job, reservations)
            if isinstance(found, domain.Reason):
                return found
            ends.append(found)
        return ends

    def _probe(self, spec: domain.JobSpec, number: int) -> domain.Job:
        """The job as it would arrive."""
        ledger, profile = self._ledger, known_profile(self._ledger, spec)
        return domain.Job(
            spec=spec,
            number=number,
            submitted_s=ledger.now_s,
            reason=domain.because("submitted", spec.user),
            progress=domain.JobProgress(resumable=spec.resumable is True),
            measured=domain.JobMeasurements(profile=profile),
            estimate=first_estimate(ledger, spec, profile),
            rank=-spec.priority,
        )

    def _earliest(
        self, job: domain.Job, reservations: dict[domain.JobId, KeptDevices]
    ) -> float | domain.Reason:
        """The later of two ends: when its turn comes in the policy's order, and when devices can be kept for
        it. Adds those devices to the `reservations`."""
        spec, now_s = job.spec, self._ledger.now_s
        if spec.after or spec.hold or spec.array_limit:
            return domain.because("promise-not-now")
        needs_s = free_times.need_s(job, now_s)
        if needs_s is None:
            return domain.because("promise-no-length", spec.name or spec.job_id)
        told = self._turn_ends_s(job, needs_s)
        if isinstance(told, domain.Reason):
            return told
        told_s = now_s + (told - now_s) * self._margin
        kept = self.find(job, needs_s * self._margin, told_s, reservations.values())
        if kept is None:
            return domain.because("promise-no-room")
        reservations[job.job_id] = kept
        return max(told_s, kept.until_s) + GRACE_S

    def _turn_ends_s(self, job: domain.Job, needs_s: float) -> float | domain.Reason:
        """When it would end behind those that stand before it in the policy's order, if nobody came any more
        and devices were all on one host."""
        ledger = self._ledger
        mine = ledger.queue.order_key(job)[:2]

        def comes_after(other: domain.Job) -> bool:
            return self.can_move(other, job) and ledger.queue.order_key(other)[:2] > mine

        free = free_times.when_free(ledger, comes_after if self._preempts else None)
        types = (job.spec.gpu_type,) if job.spec.gpu_type else tuple(ledger.free.types)
        times = sorted(at_s for each, at_s in free.items() if ledger.devices[each].type in types)
        for number, ahead in enumerate(ledger.queue.jobs_in_order()):
            if ledger.queue.order_key(ahead)[:2] > mine:
                break
            if number >= AHEAD_MAX:
                return domain.because("promise-too-many", AHEAD_MAX)
            theirs_s = free_times.need_s(ahead, ledger.now_s)
            if theirs_s is None:
                return domain.because("promise-behind-unknown", ahead.job_id)
            start_s = _take(times, ahead.spec.gpus, theirs_s)
            if not isfinite(start_s):
                return self._endless()
        start_s = _take(times, job.spec.gpus, needs_s)
        return start_s + needs_s if isfinite(start_s) else self._endless()

    def _endless(self) -> domain.Reason:
        """Somebody holds devices, and nobody knows for how long."""
        for job in self._ledger.running.jobs_by_end():
            if not isfinite(free_times.leaves_s(self._ledger, job)):
                return domain.because("promise-behind-unknown", job.job_id)
        return domain.because("promise-no-room")


def _take(times: list[float], gpus: int, needs_s: float) -> float:
    """Takes so many devices for so long; returns the first time at which they are free."""
    if gpus > len(times):
        return inf
    start_s = times[gpus - 1]
    del times[:gpus]
    for _ in range(gpus):
        insort(times, start_s + needs_s)
    return start_s
