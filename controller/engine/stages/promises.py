"""Promised ends: remembers whether each promise held, and keeps those that are open.

Rule: the engine promises only where it can keep devices (`promise_room.py`), and then refuses what would
free these too late, and does what is due. No policy preempts a promised job, and it shares with nobody. A job
may be placed on devices that are kept for another if it ends in time, if the other one can be moved without
breaking its promise, or if it can be asked to make room and would have trained by then. The reason of a job
that is kept back names the promised one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Final

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.stages import free_times
from cotenant.controller.engine.stages.free_times import NEAR_S, FreeTimes, KeptDevices
from cotenant.controller.engine.stages.promise_room import GRACE_S, OpenPromise, PromiseRoom, SavedPromises
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.engine.state.phases import RareWish

KEPT_BACK: Final = "promise-keeps-back"


class Promises:
    """The promises of one engine, and the stage that keeps them."""

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
        needs_s = free_times.need_s(job, self._ledger.now_s)
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
            if free_times.leaves_s(ledger, job) > kept.from_s + NEAR_S:
                yield kept.from_s - (free_times.moved_s(ledger, job) - ledger.now_s)

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


class PromiseGuard:
    """The guard that checks the promises to jobs, for one decision."""

    def __init__(
        self,
        ledger: Ledger,
        promised_s: Mapping[domain.JobId, float],
        reservations: dict[domain.JobId, KeptDevices],
        margin: float,
        can_move: Callable[[domain.Job, domain.Job], bool],
    ) -> None:
        self._ledger, self._promised_s, self._margin, self._can_move = ledger, promised_s, margin, can_move
        self.reservations = reservations
        """The reservations after the decision."""
        self._out: list[domain.AnyAction] = []
        self._preempted: set[domain.JobId] = set()
        self._kept_back: dict[domain.JobId, domain.JobId] = {}
        """Who gets no devices now, and because of whom."""
        self._used: set[domain.DeviceId] = set()
        self._free: FreeTimes | None = None

    def decide(self, decision: domain.Decision) -> domain.Decision:
        before = decision.actions
        for action in before:
            match action:
                case domain.Preempt():
                    self._preempt(action)
                case domain.Place() | domain.Share():
                    self._place(action)
                case _:
                    self._out.append(action)
        self._start_what_is_due()
        if self._kept_back and not any(
            isinstance(each, domain.Place | domain.Share | domain.Preempt) for each in self._out
        ):
            # Asked again at once, the policy would want the same again, and so on for ever.
            self._out = [
                each for each in self._out if type(each) is not domain.Wake or each.at_s > self._ledger.now_s
            ]
        if tuple(self._out) == tuple(before):
            return decision
        return domain.Decision(actions=tuple(self._out))

    # --- What the policy wants ---------------------------------------------------------------------

    def _preempt(self, action: domain.Preempt) -> None:
        if action.job_id in self._promised_s:
            if action.for_job is not None:
                self._kept_back[action.for_job] = action.job_id
            return
        self._out.append(action)
        self._preempted.add(action.job_id)

    def _place(self, action: domain.Place | domain.Share) -> None:
        job = self._ledger.jobs.get(action.job_id)
        if job is None:
            self._out.append(action)  # The engine says what is wrong with it.
            return
        against = self._kept_back.get(action.job_id) or self._breaks(job, action)
        if against is None:
            self.reservations.pop(action.job_id, None)
            self._used.update(action.devices)
            self._out.append(action)
            return
        self._keep_back(job, against)

    def _keep_back(self, job: domain.Job, against: domain.JobId) -> None:
        """The job gets nothing, and nobody makes room for it."""
        self._kept_back[job.job_id] = against
        for action in [each for each in self._out if isinstance(each, domain.Preempt)]:
            if action.for_job == job.job_id:
                self._out.remove(action)
                self._preempted.discard(action.job_id)
        reason = domain.because(KEPT_BACK, against)
        if job.reason != reason and job.phase is domain.QUEUED and against != job.job_id:
            self._out.append(domain.Hold(job_id=job.job_id, reason=reason))

    def _breaks(self, job: domain.Job, action: domain.Place | domain.Share) -> domain.JobId | None:
        """Whose promise this would break; None: nobody's, and the reservations in its way have been moved."""
        ledger, devices = self._ledger, set(action.devices)
        staying = [each for each in ledger.holdings.holders(*sorted(devices)) if not self._is_leaving(each)]
        for each in (job, *staying) if isinstance(action, domain.Share) else ():
            if each.job_id in self._promised_s:
                return each.job_id
            devices.update(each.placement.devices if each.placement is not None else ())
        begins_s = max(
            (free_times.moved_s(ledger, each) for each in ledger.holdings.holders(*sorted(devices))),
            default=ledger.now_s,
        )
        needs_s = free_times.need_s(job, ledger.now_s)
        ends_s = inf if needs_s is None or isinstance(action, domain.Share) else begins_s + needs_s
        own = self.reservations.get(job.job_id)
        if own is not None and needs_s is not None:
            until_s = self._promised_s[job.job_id]
            if begins_s + needs_s * self._margin > max(until_s, own.until_s) + NEAR_S:
                return job.job_id  # It is better off with what is kept for it.
        return self._make_way(job, devices, begins_s, ends_s)

    def _make_way(
        self, job: domain.Job, devices: set[domain.DeviceId], begins_s: float, ends_s: float
    ) -> domain.JobId | None:
        """Moves the reservations on these devices that are in the way; returns whose promise that would
        break, else None."""
        moved = {job_id: each for job_id, each in self.reservations.items() if job_id != job.job_id}
        for kept in sorted(moved.values(), key=lambda each: (each.until_s, each.job_id)):
            if devices.isdisjoint(kept.devices) or ends_s <= kept.from_s + NEAR_S:
                continue
            other = self._ledger.jobs[kept.job_id]
            elsewhere = self._elsewhere(other, kept, devices, ends_s, moved)
            if elsewhere is not None:
                moved[kept.job_id] = elsewhere
            elif not (
                self._can_move(job, other)
                and begins_s + job.estimate.load_s + job.estimate.pause_s <= kept.from_s + NEAR_S
            ):
                return kept.job_id
        self.reservations = {
            **{job_id: each for job_id, each in self.reservations.items() if job_id == job.job_id},
            **moved,
        }
        self._free = None if self._free is None else self._with(self._free, devices, ends_s)
        return None

    def _elsewhere(
        self,
        job: domain.Job,
        kept: KeptDevices,
        devices: set[domain.DeviceId],
        ends_s: float,
        all_kept: Mapping[domain.JobId, KeptDevices],
    ) -> KeptDevices | None:
        """Finds another time or place that keeps the promise and asks nobody to make room; none for a job for
        which others may already have been asked."""
        ledger = self._ledger
        pauses = (each.estimate.pause_s for each in ledger.running.jobs_by_end())
        needs_s = free_times.need_s(job, ledger.now_s)
        if needs_s is None or kept.from_s - ledger.now_s <= max(pauses, default=0.0) + NEAR_S:
            return None
        if self._free is None:
            self._free = free_times.when_free(ledger)
        others = [each for job_id, each in all_kept.items() if job_id != job.job_id]
        free = self._with(self._free, devices, ends_s)
        found = free_times.first_fit(ledger, job, needs_s * self._margin, free, others)
        return found if found is not None and found.until_s <= self._promised_s[job.job_id] + NEAR_S else None

    @staticmethod
    def _with(free: FreeTimes, devices: set[domain.DeviceId], ends_s: float) -> FreeTimes:
        return {each: ends_s if each in devices else at_s for each, at_s in free.items()}

    # --- What is due -------------------------------------------------------------------------------

    def _start_what_is_due(self) -> None:
        """Places the jobs whose time has come; asks tenants to leave that would not leave in time by
        themselves."""
        ledger, now_s = self._ledger, self._ledger.now_s
        placed = {each.job_id for each in self._out if isinstance(each, domain.Place | domain.Share)}
        for kept in sorted(self.reservations.values(), key=lambda each: (each.from_s, each.job_id)):
            if kept.job_id in placed or not self._used.isdisjoint(kept.devices):
                continue
            job = ledger.jobs[kept.job_id]
            here = ledger.holdings.holders(*sorted(kept.devices))
            for tenant in here:
                if (
                    not self._is_leaving(tenant)
                    and self._is_due(tenant, kept)
                    and self._can_move(tenant, job)
                ):
                    why = domain.because("promise-makes-room", kept.job_id, max(0.0, kept.from_s - now_s))
                    self._out.append(domain.Preempt(job_id=tenant.job_id, for_job=kept.job_id, reason=why))
                    self._preempted.add(tenant.job_id)
            if not here and now_s >= kept.from_s - NEAR_S and self._are_free(kept.devices):
                left_s = self._promised_s[kept.job_id] - now_s
                reason = domain.because("promise-due", left_s)
                self._out.append(domain.Place(job_id=kept.job_id, devices=kept.devices, reason=reason))
                self._used.update(kept.devices)

    def _are_free(self, devices: tuple[domain.DeviceId, ...]) -> bool:
        known = (self._ledger.devices.get(each) for each in devices)
        return all(
            device is not None and device.device_id in self._ledger.free.devices[device.host_id, device.type]
            for device in known
        )

    def _is_due(self, tenant: domain.Job, kept: KeptDevices) -> bool:
        ledger = self._ledger
        if free_times.leaves_s(ledger, tenant) <= kept.from_s + NEAR_S:
            return False
        return free_times.moved_s(ledger, tenant) >= kept.from_s - NEAR_S

    def _is_leaving(self, job: domain.Job) -> bool:
        return job.job_id in self._preempted or (
            job.phase in domain.ON_DEVICES and job.phase in domain.LEAVING
        )
