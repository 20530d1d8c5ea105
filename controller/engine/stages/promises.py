"""Promised ends: remembers whether each promise held, and keeps those that are open.

Rule: the engine promises only where it can keep devices (`promise_room.py`), and then places nothing that
would free these too late (`promise_guard.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.stages.free_times import NEAR_S, KeptDevices, leaves_s, moved_s, need_s
from cotenant.controller.engine.stages.promise_guard import PromiseGuard
from cotenant.controller.engine.stages.promise_room import GRACE_S, OpenPromise, PromiseRoom, SavedPromises
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.engine.state.phases import RareWish


class Promises:
    """The promises of one engine. A stage: the last that may change a decision."""

    serves: RareWish = "promise"
    remembers = True
    """It notes which reservations a decision has moved."""

    def __init__(self, dispatch: Dispatch, current: CurrentPolicy) -> None:
        self._dispatch, self._ledger, self._current = dispatch, dispatch.ledger, current
        self._margin = 1.0 + dispatch.config.policy.promise_margin
        self.saved = SavedPromises()

    def offer(self, specs: Sequence[domain.JobSpec], now_s: float) -> list[float] | domain.Reason:
        """Returns by when each of these jobs could be promised to end if it came now, in seconds of the
        journal; or why nothing can be promised. Changes nothing."""
        if not self._dispatch.config.policy.promises:
            return domain.because("promise-off")
        return self._room(self._ledger.as_of(now_s)).offer(specs)

    def accept(self, job: domain.Job) -> None:
        """A job has arrived that was promised an end."""
        until_s = job.spec.promised_s
        if job.promise or until_s is None:
            return
        needs_s = need_s(job, self._ledger.now_s)
        self._ledger.records.promise(job, "open")
        self.saved.open[job.job_id] = OpenPromise(until_s=until_s, need_s=inf if needs_s is None else needs_s)

    def revise(self, event: ev.AnyEvent, decision: domain.Decision) -> domain.Decision:
        """The decision without what would break a promise, and with what keeps those that are due."""
        if not self.saved.open:
            return decision
        room = self._room(self._ledger)
        self._store(room.reservations())
        guard = PromiseGuard(
            self._ledger,
            {job_id: each.until_s for job_id, each in self.saved.open.items()},
            {job_id: each.kept for job_id, each in self.saved.open.items() if each.kept is not None},
            self._margin,
            room.can_move,
        )
        decided = guard.decide(decision)
        self._store(guard.reservations)
        return decided

    def settle(self) -> None:
        """After an event and its decision: which promises were kept or broken, and when to look again."""
        if not self.saved.open:
            return
        for job_id in list(self.saved.open):
            self._judge(job_id)
        self._store(self._room(self._ledger).reservations())
        self._schedule()

    def _room(self, ledger: Ledger) -> PromiseRoom:
        return PromiseRoom(ledger, self.saved, self._margin, preempts=self._current.traits.preempts)

    def _store(self, reservations: Mapping[domain.JobId, KeptDevices]) -> None:
        for job_id, promise in self.saved.open.items():
            promise.kept = reservations.get(job_id)

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
        for job in ledger.holdings.holders(*kept.devices):
            if leaves_s(ledger, job) > kept.from_s + NEAR_S:
                yield kept.from_s - (moved_s(ledger, job) - ledger.now_s)

    # --- Kept or broken ----------------------------------------------------------------------------

    def _judge(self, job_id: domain.JobId) -> None:
        ledger, saved = self._ledger, self.saved
        job, promise = ledger.jobs.get(job_id), saved.open[job_id]
        if job is None:
            del saved.open[job_id]
            return
        if job.phase not in domain.ENDED:
            is_late = ledger.now_s > promise.until_s + GRACE_S
            if is_late and not promise.is_broken:
                self._break(job, promise)
            elif job.phase is domain.Phase.HELD and not promise.is_broken and job.reason.code == "held-by":
                self._void(job)
            return
        if promise.is_broken:
            del saved.open[job_id]
        elif job.phase is not domain.Phase.DONE:
            self._void(job)
        elif job.ended_s is not None and job.ended_s > promise.until_s + GRACE_S:
            self._break(job, promise)
            del saved.open[job_id]
        else:
            saved.kept += 1
            ledger.records.promise(job, "kept")
            del saved.open[job_id]

    def _void(self, job: domain.Job) -> None:
        self.saved.void += 1
        self._ledger.records.promise(job, "void", domain.because("promise-withdrawn"))
        del self.saved.open[job.job_id]

    def _break(self, job: domain.Job, promise: OpenPromise) -> None:
        promise.is_broken = True
        self.saved.broken += 1
        self._ledger.records.promise(job, "broken", self._why_late(job, promise))

    def _why_late(self, job: domain.Job, promise: OpenPromise) -> domain.Reason:
        has_started = job.first_start_s is not None and job.phase not in domain.WAITING
        if has_started and job.attempt.number > 1:
            return domain.because("promise-failed", job.attempt.number - 1)
        if has_started and (job.first_start_s or 0.0) + promise.need_s <= promise.until_s + NEAR_S:
            return domain.because("promise-outlived", promise.need_s)
        kept = promise.kept
        for other in self._ledger.holdings.holders(*kept.devices) if kept is not None else ():
            return domain.because("promise-blocked", other.job_id, ", ".join(kept.devices) if kept else "")
        return domain.because("promise-no-devices")

    def restore(self, saved: SavedPromises) -> None:
        self.saved = saved
