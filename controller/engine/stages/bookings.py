"""Reservations: before each decision their devices are closed, lent or opened; their owner's jobs are placed
on them, and nobody is placed where a reservation would find them in the way.

    planned   its devices are used as others are, by jobs that will have left or can be asked to
    closed    from shortly before it begins, so that tenants have saved and left by then: its owner's jobs
              alone are placed there, in the policy's order, and not preempted
    lent      unused for `reservations.lend_after_s`: as planned; the owner's next job asks tenants to leave
    over      its devices are as others again; the owner's jobs go on

Rule: what `attend` changes follows from the state and the time alone, so that recovery arrives at the same;
only placements are decisions, and recorded as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf
from typing import Final

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.stages import booking_room
from cotenant.controller.engine.stages.free_times import NEAR_S, KeptDevices, find_gang, moved_s
from cotenant.controller.engine.stages.promises import Promises
from cotenant.controller.engine.state.bookings import OpenBooking
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.engine.state.phases import RareWish
from cotenant.controller.planning import hard_s

KEPT_BACK: Final = "booking-keeps-back"
WAITING_MAX: Final = 1_000
"""Waiting jobs among which an owner's are looked for."""


class BookingStage:
    """Serves the reservations of one engine. The last that may change a decision."""

    serves: RareWish = "booking"
    remembers = False

    def __init__(self, dispatch: Dispatch, current: CurrentPolicy, promises: Promises) -> None:
        self._dispatch, self._ledger = dispatch, dispatch.ledger
        self._current, self._promises = current, promises
        self._lend_after_s = dispatch.config.reservations.lend_after_s

    def offer(
        self, booking: domain.Booking, now_s: float
    ) -> tuple[domain.DeviceId, ...] | booking_room.NoDevices:
        """Returns the devices that a reservation would get if it were made now, or what could be had instead.
        Changes nothing."""
        room = booking_room.BookingRoom(self._ledger.as_of(now_s), self._kept_for_promises())
        return room.find(booking) or room.find_other(booking)

    def _kept_for_promises(self) -> list[KeptDevices]:
        return [each.kept for each in self._promises.saved.open.values() if each.kept is not None]

    # --- What is due -------------------------------------------------------------------------------

    def attend(self) -> None:
        """Brings all reservations up to the present; called before the policy decides."""
        ledger = self._ledger
        for each in list(ledger.bookings.open.values()):
            if ledger.now_s >= each.until_s - NEAR_S:
                ledger.open_devices(each.own)
                each.is_closed = False
                ledger.bookings.go_on(each, ledger.now_s + NEAR_S)
        for each in list(ledger.bookings.open.values()):
            self._choose_again(each)
            if not each.is_closed and ledger.now_s >= self._due_s(each) - NEAR_S:
                each.is_closed = True
                ledger.close_devices(each, each.devices)
            if each.is_closed:
                self._lend(each)
                self._take_back(each)
                for device_id in each.own:
                    self._make_room(each, device_id)
            else:
                self._drop_late_claims(each)
        ledger.look_who_stays()

    def _choose_again(self, each: OpenBooking) -> None:
        """Other devices instead of those that it cannot have any more, where there are others."""
        ledger = self._ledger
        if each.devices and not any(self._is_amiss(each, device_id) for device_id in each.devices):
            return
        found = booking_room.BookingRoom(ledger, self._kept_for_promises()).find(each.booking, each)
        if found is None or set(found) == set(each.devices):
            return
        ledger.open_devices(device_id for device_id in each.own if device_id not in found)
        each.lent = [device_id for device_id in each.lent if device_id in found]
        if each.is_closed:
            ledger.close_devices(each, [device_id for device_id in found if device_id not in each.devices])
        each.devices = found

    def _is_amiss(self, each: OpenBooking, device_id: domain.DeviceId) -> bool:
        ledger = self._ledger
        if booking_room.is_lost(ledger, device_id, each.until_s):
            return True
        here = ledger.holdings.holders(device_id) if not each.is_closed else ()
        return not all(booking_room.leaves_in_time(ledger, job, each.user, each.from_s) for job in here)

    def _due_s(self, each: OpenBooking) -> float:
        """When those must be asked to leave who would be there when it begins."""
        ledger = self._ledger
        pauses = [0.0]
        for device_id in each.devices:
            for job in ledger.holdings.holders(device_id):
                if job.spec.user != each.user and not hard_s(job, ledger.now_s):
                    pauses.append(moved_s(ledger, job) - ledger.now_s)
        return each.from_s - max(pauses)

    def _make_room(self, each: OpenBooking, device_id: domain.DeviceId) -> None:
        """Whoever else is on the device, or would get it next, is asked to leave."""
        dispatch, why = self._dispatch, domain.because("booking-makes-room", each.user, each.booking_id)
        for job in self._ledger.holdings.holders(device_id):
            if job.spec.user == each.user:
                continue
            if job.phase is domain.RESERVED:
                dispatch.unreserve(job, why, preempted=True)
            elif job.phase in domain.LEAVING and job.resize_to is not None:
                if device_id in job.resize_to.devices:
                    dispatch.give_up_resize(job)
            elif job.phase in (domain.LOADING, domain.RUNNING) and _may_go(job):
                since_s = self._ledger.now_s - job.phase_since_s
                if job.phase is domain.LOADING or since_s < self._current.run_promised_s:
                    self._ledger.records.preempt_early(job)
                dispatch.stop(job, "preempted", why, save=True)

    def _drop_late_claims(self, each: OpenBooking) -> None:
        """A job that has waited for its victims too long to end before the reservation waits anew."""
        ledger = self._ledger
        for device_id in each.devices:
            claim = ledger.holdings.claimed_by(device_id)
            job = ledger.jobs[claim] if claim is not None else None
            if (
                job is not None
                and job.phase is domain.RESERVED
                and not booking_room.leaves_in_time(ledger, job, each.user, each.from_s)
            ):
                self._dispatch.unreserve(job, _against(each))

    # --- Lending -----------------------------------------------------------------------------------

    def _lend(self, each: OpenBooking) -> None:
        """Notes which devices its owner uses; those that are not used for long are lent."""
        ledger, now_s = self._ledger, self._ledger.now_s
        if now_s < each.from_s - NEAR_S:
            return
        for device_id in each.devices:
            if any(job.spec.user == each.user for job in ledger.holdings.holders(device_id)):
                each.unused_since_s.pop(device_id, None)
                if device_id in each.lent:
                    self._close_again(each, (device_id,))
                continue
            since_s = each.unused_since_s.setdefault(device_id, now_s)
            if now_s - since_s >= self._lend_after_s - NEAR_S and device_id not in each.lent:
                ledger.open_devices((device_id,))
                each.lent.append(device_id)

    def _take_back(self, each: OpenBooking) -> None:
        """The owner's waiting jobs get lent devices again."""
        if not each.lent or self._ledger.now_s < each.from_s - NEAR_S:
            return
        wanted = {device_id for _, devices in self._serve(each, each.devices) for device_id in devices}
        self._close_again(each, [device_id for device_id in each.lent if device_id in wanted])

    def _close_again(self, each: OpenBooking, devices: Iterable[domain.DeviceId]) -> None:
        devices = tuple(devices)
        each.lent = [device_id for device_id in each.lent if device_id not in devices]
        for device_id in devices:
            each.unused_since_s.pop(device_id, None)
        self._ledger.close_devices(each, devices)

    # --- Decisions ---------------------------------------------------------------------------------

    def revise(self, event: ev.AnyEvent, decision: domain.Decision) -> domain.Decision:
        """The decision with the owners' jobs on their reserved devices, and without what would be in the way
        of a reservation."""
        ledger, before = self._ledger, decision.actions
        if not ledger.bookings.open:
            return decision
        served: dict[domain.JobId, domain.AnyAction] = {}
        for each in ledger.bookings.open.values():
            if each.is_closed and ledger.now_s >= each.from_s - NEAR_S:
                for job, devices in self._serve(each, each.own, served):
                    reason = domain.because("booking-serves", each.booking_id, len(devices))
                    served[job.job_id] = domain.Place(job_id=job.job_id, devices=devices, reason=reason)
        refused = {
            action.job_id: against
            for action in before
            if isinstance(action, domain.Place | domain.Share | domain.Resize)
            and action.job_id not in served
            and (against := self._in_the_way_of(action)) is not None
        }
        out = [*served.values(), *self._what_is_left(before, served.keys() | refused.keys())]
        for job_id, each in refused.items():
            job = ledger.jobs[job_id]
            if job.phase is domain.QUEUED and job.reason != _against(each):
                out.append(domain.Hold(job_id=job_id, reason=_against(each)))
        if refused and not any(
            isinstance(each, domain.Place | domain.Share | domain.Preempt | domain.Resize) for each in out
        ):
            # Asked again at once, the policy would want the same again, and so on for ever.
            out = [each for each in out if type(each) is not domain.Wake or each.at_s > ledger.now_s]
        if any(isinstance(each, domain.Place | domain.Share) and each.job_id in served for each in before):
            # Others may have what the policy meant for these jobs.
            out.append(domain.Wake(at_s=ledger.now_s, reason=domain.because("booking-ask-again")))
        return decision if tuple(out) == before else domain.Decision(actions=tuple(out))

    def _what_is_left(
        self, actions: Iterable[domain.AnyAction], without: Iterable[domain.JobId]
    ) -> Iterable[domain.AnyAction]:
        """The policy's actions, but for those about jobs that were served or refused, and for preemptions of
        jobs that hold what is reserved for their owner."""
        gone, guarded = set(without), self._guarded()
        for action in actions:
            if isinstance(action, domain.Place | domain.Share | domain.Resize) and action.job_id in gone:
                continue
            if isinstance(action, domain.Preempt) and (action.for_job in gone or action.job_id in guarded):
                continue
            yield action

    def _guarded(self) -> set[domain.JobId]:
        ledger = self._ledger
        return {
            job.job_id
            for each in ledger.bookings.open.values()
            for device_id in each.own
            for job in ledger.holdings.holders(device_id)
            if job.spec.user == each.user
        }

    def _serve(
        self, each: OpenBooking, devices: Iterable[domain.DeviceId], but: Iterable[domain.JobId] = ()
    ) -> list[tuple[domain.Job, tuple[domain.DeviceId, ...]]]:
        """The owner's waiting jobs, in the policy's order, with those of these devices that they get."""
        ledger, found = self._ledger, list[tuple[domain.Job, tuple[domain.DeviceId, ...]]]()
        free = [device_id for device_id in devices if self._can_serve(each, device_id)]
        if not free:
            return found
        for job in islice(ledger.queue.jobs_in_order(), WAITING_MAX):
            if job.spec.user != each.user or job.spec.gpus > len(free) or job.job_id in but:
                continue
            is_whole = job.spec.gpu_fraction == 1.0  # A part would not wait for others to leave.
            fit = free if is_whole else [each for each in free if not ledger.holdings.tenants(each)]
            gang = find_gang(ledger, job, fit)
            if gang is not None:
                found.append((job, gang))
                free = [device_id for device_id in free if device_id not in gang]
        return found

    def _can_serve(self, each: OpenBooking, device_id: domain.DeviceId) -> bool:
        """Whether a reserved device is free for its owner, or will be as soon as others have left."""
        ledger = self._ledger
        if booking_room.is_lost(ledger, device_id, ledger.now_s):
            return False
        here = ledger.holdings.holders(device_id)
        return not any(job.spec.user == each.user for job in here) and (
            device_id in each.lent or all(job.phase in domain.LEAVING for job in here)
        )

    def _in_the_way_of(self, action: domain.Place | domain.Share | domain.Resize) -> OpenBooking | None:
        """The reservation that would find this job on its devices; None: there is none."""
        ledger, job = self._ledger, self._ledger.jobs.get(action.job_id)
        if job is None:
            return None
        devices, now_s = set(action.devices), ledger.now_s
        hosts = [ledger.hosts.get(ledger.holdings.host_of(each)) for each in devices]
        is_apart = len({host.checkpoint_domain for host in hosts if host is not None}) > 1
        may_take_s = hard_s(job, now_s, is_apart=is_apart)
        for each in ledger.bookings.open.values():
            if each.user == job.spec.user or devices.isdisjoint(each.devices):
                continue
            if each.is_closed:
                if not devices.isdisjoint(each.own) or may_take_s:
                    return each
                continue
            here = ledger.holdings.holders(*action.devices)
            begins_s = max((moved_s(ledger, other) for other in here), default=now_s)
            needs_s = may_take_s or job.estimate.load_s + job.estimate.pause_s
            if begins_s + needs_s > each.from_s + NEAR_S:
                return each
        return None

    # --- Afterwards --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Sets an alarm for when the next reservation needs to be looked at."""
        saved, now_s = self._ledger.bookings.saved, self._ledger.now_s
        moments: list[float] = []
        for each in saved.open.values():
            moments += [each.until_s, each.from_s, self._due_s(each)]
            if each.is_closed:
                unlent = (
                    at_s for device_id, at_s in each.unused_since_s.items() if device_id not in each.lent
                )
                moments += [at_s + self._lend_after_s for at_s in unlent]
        due_s = min((at_s for at_s in moments if at_s > now_s + NEAR_S / 2), default=inf)
        if due_s < inf and not now_s < saved.alarm_s <= due_s:
            saved.alarm_s = due_s
            self._dispatch.wake_at(due_s, "booking", "", 0)


def _may_go(job: domain.Job) -> bool:
    """Whether a tenant is asked to leave: one that said it can resume came here for that alone."""
    return job.spec.job_class == "spot" and (job.progress.resumable or job.spec.resumable is True)


def _against(each: OpenBooking) -> domain.Reason:
    return domain.because(KEPT_BACK, each.user, each.booking_id)


def why_kept(ledger: Ledger, job: domain.Job) -> list[domain.Reason]:
    """Which reservations keep a waiting job from devices that would suit it, and what would change that."""
    found: list[domain.Reason] = []
    scheduling_class, now_s = ledger.queue.class_of(job), ledger.now_s
    for each in ledger.bookings.open.values():
        suited = [
            device_id
            for device_id in each.devices
            if (device := ledger.devices.get(device_id)) is not None
            and domain.is_type_for(scheduling_class.gpu_type, device.type)
        ]
        if not suited or each.user == job.spec.user:
            continue
        in_s, left_s = each.from_s - now_s, each.until_s - now_s
        if own := [device_id for device_id in suited if device_id in each.own]:
            found.append(domain.because("booking-now", len(own), each.user, each.booking_id, left_s))
        elif hard_s(job, now_s) and not each.is_closed and hard_s(job, now_s) > in_s:
            found.append(domain.because("booking-ahead", len(suited), each.user, each.booking_id, in_s))
        elif hard_s(job, now_s) and each.is_closed:
            found.append(domain.because("booking-lent", len(suited), each.user, each.booking_id))
    return found
