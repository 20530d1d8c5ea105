"""Checks one decision against the promises: the engine refuses what would break one, and does what is due;
and when devices become free, as far as it can be known, with the first time at which a gang fits.

Rule: no policy preempts a promised job, and it shares with nobody. A job may be placed on devices that are
kept for another if it ends in time, if the other one can be moved without breaking its promise, or if it can
be asked to make room and would have trained by then. The reason of a job that is kept back names the promised
one.

Rule: unknown counts as never: a job of unknown length leaves at infinity, and so does one that shares its
devices, since its pace depends on the other; unless a time limit ends it. A job that is late is expected to
be as late again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Final

import msgspec

from cotenant.controller.domain import (
    LEAVING,
    LOADING,
    ON_DEVICES,
    QUEUED,
    RESERVED,
    AnyAction,
    Decision,
    DeviceId,
    Hold,
    HostId,
    Job,
    JobId,
    Place,
    Preempt,
    Share,
    Wake,
    asks_hosts,
    because,
)
from cotenant.controller.engine.ledger import Ledger
from cotenant.controller.planning import Plan

KEPT_BACK: Final = "promise-keeps-back"


class PromiseGuard:
    """For one decision."""

    def __init__(
        self,
        ledger: Ledger,
        promised_s: Mapping[JobId, float],
        reservations: dict[JobId, KeptDevices],
        margin: float,
        can_move: Callable[[Job, Job], bool],
    ) -> None:
        self._ledger, self._promised_s, self._margin, self._can_move = ledger, promised_s, margin, can_move
        self.reservations = reservations
        """The reservations after the decision."""
        self._out: list[AnyAction] = []
        self._preempted: set[JobId] = set()
        self._kept_back: dict[JobId, JobId] = {}
        """Who gets no devices now, and because of whom."""
        self._used: set[DeviceId] = set()
        self._free: FreeTimes | None = None

    def decide(self, decision: Decision) -> Decision:
        before = decision.actions
        for action in before:
            match action:
                case Preempt():
                    self._preempt(action)
                case Place() | Share():
                    self._place(action)
                case _:
                    self._out.append(action)
        self._start_what_is_due()
        if self._kept_back and not any(isinstance(each, Place | Share | Preempt) for each in self._out):
            # Asked again at once, the policy would want the same again, and so on for ever.
            self._out = [
                each for each in self._out if type(each) is not Wake or each.at_s > self._ledger.now_s
            ]
        if tuple(self._out) == tuple(before):
            return decision
        return Decision(actions=tuple(self._out))

    # --- What the policy wants ---------------------------------------------------------------------

    def _preempt(self, action: Preempt) -> None:
        if action.job_id in self._promised_s:
            if action.for_job is not None:
                self._kept_back[action.for_job] = action.job_id
            return
        self._out.append(action)
        self._preempted.add(action.job_id)

    def _place(self, action: Place | Share) -> None:
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

    def _keep_back(self, job: Job, against: JobId) -> None:
        """The job gets nothing, and nobody makes room for it."""
        self._kept_back[job.job_id] = against
        for action in [each for each in self._out if isinstance(each, Preempt)]:
            if action.for_job == job.job_id:
                self._out.remove(action)
                self._preempted.discard(action.job_id)
        reason = because(KEPT_BACK, against)
        if job.reason != reason and job.phase is QUEUED and against != job.job_id:
            self._out.append(Hold(job_id=job.job_id, reason=reason))

    def _breaks(self, job: Job, action: Place | Share) -> JobId | None:
        """Whose promise this would break; None: nobody's, and the reservations in its way have been moved."""
        ledger, devices = self._ledger, set(action.devices)
        staying = [each for each in self._tenants(devices) if not self._is_leaving(each)]
        for each in (job, *staying) if isinstance(action, Share) else ():
            if each.job_id in self._promised_s:
                return each.job_id
            devices.update(each.placement.devices if each.placement is not None else ())
        begins_s = max((moved_s(ledger, each) for each in self._tenants(devices)), default=ledger.now_s)
        needs_s = need_s(job, ledger.now_s)
        ends_s = inf if needs_s is None or isinstance(action, Share) else begins_s + needs_s
        own = self.reservations.get(job.job_id)
        if own is not None and needs_s is not None:
            until_s = self._promised_s[job.job_id]
            if begins_s + needs_s * self._margin > max(until_s, own.until_s) + NEAR_S:
                return job.job_id  # It is better off with what is kept for it.
        return self._make_way(job, devices, begins_s, ends_s)

    def _make_way(self, job: Job, devices: set[DeviceId], begins_s: float, ends_s: float) -> JobId | None:
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
                and begins_s + job.expected_load_s + job.expected_pause_s <= kept.from_s + NEAR_S
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
        job: Job,
        kept: KeptDevices,
        devices: set[DeviceId],
        ends_s: float,
        all_kept: Mapping[JobId, KeptDevices],
    ) -> KeptDevices | None:
        """Another time or place that keeps the promise and asks nobody to make room; none for a job for which
        others may already have been asked."""
        ledger = self._ledger
        pauses = (each.expected_pause_s for each in ledger.on_devices())
        needs_s = need_s(job, ledger.now_s)
        if needs_s is None or kept.from_s - ledger.now_s <= max(pauses, default=0.0) + NEAR_S:
            return None
        if self._free is None:
            self._free = free_times(ledger)
        others = [each for job_id, each in all_kept.items() if job_id != job.job_id]
        free = self._with(self._free, devices, ends_s)
        found = first_fit(ledger, job, needs_s * self._margin, free, others)
        return found if found is not None and found.until_s <= self._promised_s[job.job_id] + NEAR_S else None

    @staticmethod
    def _with(free: FreeTimes, devices: set[DeviceId], ends_s: float) -> FreeTimes:
        return {each: ends_s if each in devices else at_s for each, at_s in free.items()}

    # --- What is due -------------------------------------------------------------------------------

    def _start_what_is_due(self) -> None:
        """Places the jobs whose time has come; asks tenants to leave that would not leave in time by
        themselves."""
        ledger, now_s = self._ledger, self._ledger.now_s
        placed = {each.job_id for each in self._out if isinstance(each, Place | Share)}
        for kept in sorted(self.reservations.values(), key=lambda each: (each.from_s, each.job_id)):
            if kept.job_id in placed or not self._used.isdisjoint(kept.devices):
                continue
            job = ledger.jobs[kept.job_id]
            here = self._tenants(set(kept.devices))
            for tenant in here:
                if (
                    not self._is_leaving(tenant)
                    and self._is_due(tenant, kept)
                    and self._can_move(tenant, job)
                ):
                    why = because("promise-makes-room", kept.job_id, max(0.0, kept.from_s - now_s))
                    self._out.append(Preempt(job_id=tenant.job_id, for_job=kept.job_id, reason=why))
                    self._preempted.add(tenant.job_id)
            if not here and now_s >= kept.from_s - NEAR_S and self._are_free(kept.devices):
                left_s = self._promised_s[kept.job_id] - now_s
                reason = because("promise-due", left_s)
                self._out.append(Place(job_id=kept.job_id, devices=kept.devices, reason=reason))
                self._used.update(kept.devices)

    def _are_free(self, devices: tuple[DeviceId, ...]) -> bool:
        known = (self._ledger.devices.get(each) for each in devices)
        return all(
            device is not None and device.device_id in self._ledger.free.devices[device.host_id, device.type]
            for device in known
        )

    def _is_due(self, tenant: Job, kept: KeptDevices) -> bool:
        ledger = self._ledger
        if leaves_s(ledger, tenant) <= kept.from_s + NEAR_S:
            return False
        return moved_s(ledger, tenant) >= kept.from_s - NEAR_S

    def _tenants(self, devices: set[DeviceId]) -> list[Job]:
        """Who holds any of them, or waits for those that do."""
        ledger, found = self._ledger, dict[JobId, None]()
        for device_id in sorted(devices):
            claim = ledger.claimed_by(device_id)
            found.update(
                dict.fromkeys((*ledger.tenants(device_id), *((claim,) if claim is not None else ())))
            )
        return [ledger.jobs[each] for each in found]

    def _is_leaving(self, job: Job) -> bool:
        return job.job_id in self._preempted or (job.phase in ON_DEVICES and job.phase in LEAVING)


NEAR_S: Final = 0.01
"""Times nearer than this are the same: a save loses up to a step of a simulated job."""
STARTS_MAX: Final = 1_000
FreeTimes = dict[DeviceId, float]
"""Device that takes work -> when it becomes free."""
CanMove = Callable[[Job], bool]
"""Whether a job can be asked to make room."""


class KeptDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that are kept for a job, from a time on."""

    job_id: JobId
    devices: tuple[DeviceId, ...]
    from_s: float
    until_s: float
    """The job is expected to end before this."""

    def overlaps(self, from_s: float, until_s: float) -> bool:
        return self.from_s < until_s - NEAR_S and self.until_s > from_s + NEAR_S


def need_s(job: Job, now_s: float) -> float | None:
    """Loading and training that a waiting job has before it; None: nobody knows."""
    left_s = job.known_left_s(now_s)
    return None if left_s is None else job.expected_load_s + left_s


def leaves_s(ledger: Ledger, job: Job) -> float:
    """When a job that holds devices, or waits for its victims to leave them, will have left by itself."""
    limit_left_s = job.limit_left_s(ledger.now_s)
    if limit_left_s is None or job.phase in LEAVING:
        return _expected_to_leave_s(ledger, job)
    begins_s = start_s(ledger, job.waits_for) if job.phase is RESERVED else ledger.now_s
    return min(_expected_to_leave_s(ledger, job), begins_s + limit_left_s + job.expected_pause_s)


def _expected_to_leave_s(ledger: Ledger, job: Job) -> float:
    """The same as far as its length is known, whatever its time limit."""
    now_s = ledger.now_s
    if job.phase in LEAVING:
        return _later(job.phase_since_s + job.expected_pause_s, now_s)
    left_s = job.known_left_s(now_s)
    if left_s is None or (job.placement is not None and job.phase is not RESERVED and ledger.partners(job)):
        return inf
    if job.phase is RESERVED:
        return start_s(ledger, job.waits_for) + job.expected_load_s + left_s
    if job.phase is LOADING:
        return _later(job.phase_since_s + job.expected_load_s, now_s) + left_s
    assert job.remaining_s is not None
    return _later(job.remaining_at_s + job.remaining_s * job.slowdown, now_s)


def start_s(ledger: Ledger, victims: Iterable[JobId]) -> float:
    """When these will have left, if they leave now."""
    begins_s = ledger.now_s
    for victim_id in victims:
        victim = ledger.jobs.get(victim_id)
        if victim is not None and victim.hosts_left:
            begins_s = max(begins_s, moved_s(ledger, victim))
    return begins_s


def moved_s(ledger: Ledger, job: Job) -> float:
    """When a job has left if it is asked to now."""
    if job.phase in LEAVING:
        return leaves_s(ledger, job)
    if job.phase is RESERVED:
        return start_s(ledger, job.waits_for)
    return ledger.now_s + job.expected_pause_s


def free_times(ledger: Ledger, can_move: CanMove | None = None) -> FreeTimes:
    """When each device that takes work becomes free. `can_move`: which jobs may be asked to make room."""
    found: FreeTimes = {}
    for device_id, device in ledger.devices.items():
        host = ledger.hosts.get(device.host_id)
        if device.healthy and host is not None and host.takes_work:
            claim = ledger.claimed_by(device_id)
            here = (*ledger.tenants(device_id), *((claim,) if claim is not None else ()))
            found[device_id] = max(
                (free_of(ledger, ledger.jobs[each], can_move) for each in here), default=ledger.now_s
            )
    return found


def free_of(ledger: Ledger, job: Job, can_move: CanMove | None) -> float:
    """When its devices are free of one job."""
    by_itself_s = leaves_s(ledger, job)
    if can_move is None or not can_move(job):
        return by_itself_s
    return min(by_itself_s, moved_s(ledger, job))


def first_fit(
    ledger: Ledger, job: Job, needs_s: float, free: Mapping[DeviceId, float], kept: Collection[KeptDevices]
) -> KeptDevices | None:
    """The first time at which a whole gang finds devices that are free for as long as it needs them."""
    now_s = ledger.now_s
    later = {at_s for at_s in chain(free.values(), (each.until_s for each in kept)) if now_s < at_s < inf}
    for from_s in sorted({now_s, *later})[:STARTS_MAX]:
        until_s = from_s + needs_s
        taken = {d for each in kept if each.overlaps(from_s, until_s) for d in each.devices}
        open_then = [d for d, at_s in free.items() if at_s <= from_s + NEAR_S and d not in taken]
        devices = _gang_on(ledger, job, open_then) if len(open_then) >= job.spec.gpus else None
        if devices is not None:
            return KeptDevices(job_id=job.job_id, devices=devices, from_s=from_s, until_s=until_s)
    return None


def _gang_on(ledger: Ledger, job: Job, devices: Sequence[DeviceId]) -> tuple[DeviceId, ...] | None:
    """Devices for the gang, as if these were free and no others."""
    plan = Plan(ledger)
    wanted: dict[tuple[HostId, str], list[DeviceId]] = defaultdict(list)
    for device_id in devices:
        device = ledger.devices[device_id]
        wanted[device.host_id, device.type].append(device_id)
    for host in ledger.hosts.values():
        for type in {device.type for device in host.report.devices}:
            now = list(ledger.free.devices[host.host_id, type])
            then = wanted.get((host.host_id, type), [])
            plan.suppose_taken(host.host_id, type, [each for each in now if each not in then])
            plan.suppose_free(host.host_id, type, [each for each in then if each not in now])
    if asks_hosts(job.spec):
        free = set(devices)
        holders = (*ledger.on_devices(), *(ledger.jobs[each] for each in ledger.claimants()))
        plan.suppose_gone(h.job_id for h in holders if h.placement and free.issuperset(h.placement.devices))
    return plan.find_free(job)


def _later(due_s: float, now_s: float) -> float:
    return due_s if due_s >= now_s else now_s + (now_s - due_s)
