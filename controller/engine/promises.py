"""Promised ends: keeps devices for promised jobs, and remembers whether each promise held. Rule: the engine
promises only where it can keep devices, and then places nothing that would free these too late
(`promise_guard.py`). What it keeps follows from the state, the time and what it kept before, so that recovery
arrives at the same; it asks no policy.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Final

import msgspec

from cotenant.controller.domain import (
    ENDED,
    QUEUED,
    WAITING,
    Decision,
    DeviceId,
    Job,
    JobId,
    JobSpec,
    Phase,
    Reason,
    because,
)
from cotenant.controller.engine.dispatch import Dispatch
from cotenant.controller.engine.estimating import estimate_arrival, estimate_overheads, known_profile
from cotenant.controller.engine.free_times import (
    NEAR_S,
    CanMove,
    FreeTimes,
    KeptDevices,
    first_fit,
    free_times,
    leaves_s,
    moved_s,
    need_s,
)
from cotenant.controller.engine.ledger import Ledger
from cotenant.controller.engine.promise_guard import PromiseGuard

GRACE_S: Final = 1.0
"""An end up to this much later than promised is not late."""
AHEAD_MAX: Final = 2_000
"""Waiting jobs that are looked at for one promise."""


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


class Promises:
    """The promises of one engine."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch, self._ledger = dispatch, dispatch.ledger
        self.preempts = False
        """The policy in force preempts: then others may be preempted for a promised job too."""
        self.saved = SavedPromises()

    # --- Giving one --------------------------------------------------------------------------------

    def offer(self, specs: Sequence[JobSpec]) -> list[float] | Reason:
        """By when each of these could be promised to end if it came now, in seconds of the journal; or why
        nothing can be promised. Changes nothing."""
        if not self._dispatch.config.policy.promises:
            return because("promise-off")
        reservations = self._reservations()
        ends: list[float] = []
        for number, spec in enumerate(specs):
            job = self._probe(spec, self._ledger.next_number + number)
            found = self._earliest(job, reservations)
            if isinstance(found, Reason):
                return found
            ends.append(found)
        return ends

    def _probe(self, spec: JobSpec, number: int) -> Job:
        """The job as it would arrive."""
        ledger, profile = self._ledger, known_profile(self._ledger, spec)
        remaining_s, source = estimate_arrival(ledger.estimates, spec, profile)
        load_s, pause_s = estimate_overheads(ledger.estimates, spec)
        return Job(
            spec=spec,
            number=number,
            submitted_s=ledger.now_s,
            reason=because("submitted", spec.user),
            resumable=spec.resumable is True,
            profile=profile,
            remaining_s=remaining_s,
            estimate_source=source,
            expected_load_s=load_s,
            expected_pause_s=pause_s,
            rank=-spec.priority,
        )

    def _earliest(self, job: Job, reservations: dict[JobId, KeptDevices]) -> float | Reason:
        """The later of two ends: when its turn comes in the policy's order, and when devices can be kept for
        it. Adds those devices to the `reservations`."""
        spec, now_s = job.spec, self._ledger.now_s
        if spec.after or spec.hold or spec.array_limit:
            return because("promise-not-now")
        needs_s = need_s(job, now_s)
        if needs_s is None:
            return because("promise-no-length", spec.name or spec.job_id)
        told = self._turn_ends_s(job, needs_s)
        if isinstance(told, Reason):
            return told
        margin = 1.0 + self._dispatch.config.policy.promise_margin
        told_s = now_s + (told - now_s) * margin
        kept = self._find(job, needs_s * margin, told_s, reservations.values())
        if kept is None:
            return because("promise-no-room")
        reservations[job.job_id] = kept
        return max(told_s, kept.until_s) + GRACE_S

    def _turn_ends_s(self, job: Job, needs_s: float) -> float | Reason:
        """When it would end behind those that stand before it in the policy's order, if nobody came any more
        and devices were all on one host."""
        ledger = self._ledger
        mine = ledger.order_key(job)[:2]

        def comes_after(other: Job) -> bool:
            return self._can_move(other, job) and ledger.order_key(other)[:2] > mine

        free = free_times(ledger, comes_after if self.preempts else None)
        types = (job.spec.gpu_type,) if job.spec.gpu_type else tuple(ledger.free.types)
        times = sorted(at_s for each, at_s in free.items() if ledger.devices[each].type in types)
        for number, ahead in enumerate(ledger.queued()):
            if ledger.order_key(ahead)[:2] > mine:
                break
            if number >= AHEAD_MAX:
                return because("promise-too-many", AHEAD_MAX)
            theirs_s = need_s(ahead, ledger.now_s)
            if theirs_s is None:
                return because("promise-behind-unknown", ahead.job_id)
            start_s = _take(times, ahead.spec.gpus, theirs_s)
            if not isfinite(start_s):
                return self._endless()
        start_s = _take(times, job.spec.gpus, needs_s)
        return start_s + needs_s if isfinite(start_s) else self._endless()

    def _endless(self) -> Reason:
        """Somebody holds devices, and nobody knows for how long."""
        for job in self._ledger.on_devices():
            if not isfinite(leaves_s(self._ledger, job)):
                return because("promise-behind-unknown", job.job_id)
        return because("promise-no-room")

    def accept(self, job: Job) -> None:
        """A job has arrived that was promised an end."""
        until_s = job.spec.promised_s
        if job.promise or until_s is None:
            return
        needs_s = need_s(job, self._ledger.now_s)
        self._ledger.promise(job, "open")
        self.saved.open[job.job_id] = OpenPromise(until_s=until_s, need_s=inf if needs_s is None else needs_s)

    # --- Keeping them ------------------------------------------------------------------------------

    def guarded(self, decision: Decision) -> Decision:
        """The decision without what would break a promise, and with what keeps those that are due."""
        self._store(self._reservations())
        guard = PromiseGuard(
            self._ledger,
            {job_id: each.until_s for job_id, each in self.saved.open.items()},
            {job_id: each.kept for job_id, each in self.saved.open.items() if each.kept is not None},
            1.0 + self._dispatch.config.policy.promise_margin,
            self._can_move,
        )
        decided = guard.decide(decision)
        self._store(guard.reservations)
        return decided

    def settle(self) -> None:
        """After an event and its decision: which promises were kept or broken, and when to look again."""
        for job_id in list(self.saved.open):
            self._judge(job_id)
        self._store(self._reservations())
        self._schedule()

    def _store(self, reservations: Mapping[JobId, KeptDevices]) -> None:
        for job_id, promise in self.saved.open.items():
            promise.kept = reservations.get(job_id)

    def _reservations(self) -> dict[JobId, KeptDevices]:
        """Devices for promised jobs that wait: the same as before where that still works, else new ones, the
        earliest promise first."""
        ledger, jobs = self._ledger, self._ledger.jobs
        waiting = [
            (promise.until_s, job.number, job, promise)
            for job_id, promise in self.saved.open.items()
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
        margin = 1.0 + self._dispatch.config.policy.promise_margin
        for until_s, _, job, _ in sorted(again, key=lambda each: each[:2]):
            needs_s = need_s(job, ledger.now_s)
            kept = None if needs_s is None else self._find(job, needs_s * margin, until_s, found.values())
            if kept is not None:
                found[job.job_id] = kept
        return found

    def _holds(self, kept: KeptDevices, free: FreeTimes) -> bool:
        if kept.from_s < self._ledger.now_s - NEAR_S:
            return False
        return all(free.get(each, inf) <= kept.from_s + NEAR_S for each in kept.devices)

    def _find(
        self, job: Job, needs_s: float, until_s: float, others: Iterable[KeptDevices]
    ) -> KeptDevices | None:
        """The first fit without making room, if that is early enough; else the earliest fit."""
        others = list(others)
        quiet = first_fit(self._ledger, job, needs_s, free_times(self._ledger), others)
        if not self.preempts or (quiet is not None and quiet.until_s <= until_s + NEAR_S):
            return quiet
        loud = first_fit(self._ledger, job, needs_s, self._free_for(job), others)
        if quiet is None or (loud is not None and loud.until_s < quiet.until_s):
            return loud
        return quiet

    def _free_for(self, job: Job) -> FreeTimes:
        can_move: CanMove | None = (lambda other: self._can_move(other, job)) if self.preempts else None
        return free_times(self._ledger, can_move)

    def _can_move(self, job: Job, newcomer: Job) -> bool:
        """Whether a job may be preempted for the sake of a promise."""
        return (
            self.preempts
            and job.preemptible
            and not job.aged
            and job.job_id not in self.saved.open
            and job.spec.priority <= newcomer.spec.priority
        )

    def _schedule(self) -> None:
        """Sets an alarm for when the next reservation is due, or the next promise breaks."""
        saved, now_s = self.saved, self._ledger.now_s
        moments = [p.until_s + 1.5 * GRACE_S for p in saved.open.values() if not p.is_broken]
        for promise in saved.open.values():
            if promise.kept is not None:
                moments += [promise.kept.from_s, *self._asks(promise.kept)]
        due_s = min((at_s for at_s in moments if at_s > now_s + NEAR_S / 2), default=inf)
        if isfinite(due_s) and not now_s < saved.alarm_s <= due_s:
            saved.alarm_s = due_s
            self._dispatch.wake_at(due_s, "promise", "", 0)

    def _asks(self, kept: KeptDevices) -> Iterable[float]:
        """When to ask those to leave who would not have left by themselves."""
        ledger = self._ledger
        for job in holders(ledger, kept.devices):
            if leaves_s(ledger, job) > kept.from_s + NEAR_S:
                yield kept.from_s - (moved_s(ledger, job) - ledger.now_s)

    # --- Kept or broken ----------------------------------------------------------------------------

    def _judge(self, job_id: JobId) -> None:
        ledger, saved = self._ledger, self.saved
        job, promise = ledger.jobs.get(job_id), saved.open[job_id]
        if job is None:
            del saved.open[job_id]
            return
        if job.phase not in ENDED:
            is_late = ledger.now_s > promise.until_s + GRACE_S
            if is_late and not promise.is_broken:
                self._break(job, promise)
            elif job.phase is Phase.HELD and not promise.is_broken and job.reason.code == "held-by":
                self._void(job)
            return
        if promise.is_broken:
            del saved.open[job_id]
        elif job.phase is not Phase.DONE:
            self._void(job)
        elif job.ended_s is not None and job.ended_s > promise.until_s + GRACE_S:
            self._break(job, promise)
            del saved.open[job_id]
        else:
            saved.kept += 1
            ledger.promise(job, "kept")
            del saved.open[job_id]

    def _void(self, job: Job) -> None:
        self.saved.void += 1
        self._ledger.promise(job, "void", because("promise-withdrawn"))
        del self.saved.open[job.job_id]

    def _break(self, job: Job, promise: OpenPromise) -> None:
        promise.is_broken = True
        self.saved.broken += 1
        self._ledger.promise(job, "broken", self._why_late(job, promise))

    def _why_late(self, job: Job, promise: OpenPromise) -> Reason:
        has_started = job.first_start_s is not None and job.phase not in WAITING
        if has_started and job.attempt > 1:
            return because("promise-failed", job.attempt - 1)
        if has_started and (job.first_start_s or 0.0) + promise.need_s <= promise.until_s + NEAR_S:
            return because("promise-outlived", promise.need_s)
        kept = promise.kept
        for other in holders(self._ledger, kept.devices) if kept is not None else ():
            return because("promise-blocked", other.job_id, ", ".join(kept.devices) if kept else "")
        return because("promise-no-devices")

    def restore(self, saved: SavedPromises) -> None:
        self.saved = saved


def holders(ledger: Ledger, devices: Iterable[DeviceId]) -> list[Job]:
    """Who holds any of these, or has a claim on one; each once."""
    found: dict[JobId, None] = {}
    for device_id in devices:
        found.update(dict.fromkeys(ledger.tenants(device_id)))
        claim = ledger.claimed_by(device_id)
        if claim is not None:
            found[claim] = None
    return [ledger.jobs[each] for each in found]


def _take(times: list[float], gpus: int, needs_s: float) -> float:
    """Takes so many devices for so long; returns the first time at which they are free."""
    if gpus > len(times):
        return inf
    start_s = times[gpus - 1]
    del times[:gpus]
    for _ in range(gpus):
        insort(times, start_s + needs_s)
    return start_s
