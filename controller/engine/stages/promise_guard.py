"""Checks one decision against the promises: the engine refuses what would break one, and does what is due.

Rule: no policy preempts a promised job, and it shares with nobody. A job may be placed on devices that are
kept for another if it ends in time, if the other one can be moved without breaking its promise, or if it can
be asked to make room and would have trained by then. The reason of a job that is kept back names the promised
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from cotenant.controller import domain
from cotenant.controller.engine.stages import free_times
from cotenant.controller.engine.stages.free_times import NEAR_S, FreeTimes, KeptDevices
from cotenant.controller.engine.state.ledger import Ledger

KEPT_BACK: Final = "promise-keeps-back"


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
