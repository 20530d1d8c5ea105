"""What end could be promised to jobs that are not here yet. Rule: the engine promises only where it can keep
devices.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from math import inf, isfinite
from typing import Final

from cotenant.controller import domain
from cotenant.controller.engine.stages.free_times import KeptDevices, free_times, leaves_s, need_s
from cotenant.controller.engine.stages.promise_room import GRACE_S, PromiseRoom, SavedPromises
from cotenant.controller.engine.state.estimating import first_estimate, known_profile
from cotenant.controller.engine.state.ledger import Ledger

AHEAD_MAX: Final = 2_000
"""Waiting jobs that are looked at for one promise."""


class PromiseOffers:
    """Promises that could be made as of one state of the ledger; nothing changes by asking."""

    def __init__(self, ledger: Ledger, saved: SavedPromises, margin: float, *, preempts: bool) -> None:
        self._ledger, self._margin, self._preempts = ledger, margin, preempts
        self._room = PromiseRoom(ledger, saved, margin, preempts=preempts)

    def offer(self, specs: Sequence[domain.JobSpec]) -> list[float] | domain.Reason:
        """Returns by when each of these jobs could be promised to end if it came now, in seconds of the
        journal; or why nothing can be promised. Changes nothing."""
        reservations = self._room.reservations()
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
        needs_s = need_s(job, now_s)
        if needs_s is None:
            return domain.because("promise-no-length", spec.name or spec.job_id)
        told = self._turn_ends_s(job, needs_s)
        if isinstance(told, domain.Reason):
            return told
        told_s = now_s + (told - now_s) * self._margin
        kept = self._room.find(job, needs_s * self._margin, told_s, reservations.values())
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
            return self._room.can_move(other, job) and ledger.queue.order_key(other)[:2] > mine

        free = free_times(ledger, comes_after if self._preempts else None)
        types = (job.spec.gpu_type,) if job.spec.gpu_type else tuple(ledger.free.types)
        times = sorted(at_s for each, at_s in free.items() if ledger.devices[each].type in types)
        for number, ahead in enumerate(ledger.queue.jobs_in_order()):
            if ledger.queue.order_key(ahead)[:2] > mine:
                break
            if number >= AHEAD_MAX:
                return domain.because("promise-too-many", AHEAD_MAX)
            theirs_s = need_s(ahead, ledger.now_s)
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
            if not isfinite(leaves_s(self._ledger, job)):
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
