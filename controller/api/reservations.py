"""Users reserve devices: what they may have is checked, and what cannot be had is refused with what can.

Rule: nothing is journalled that the engine could not give devices to at that moment.
"""

from __future__ import annotations

import time
from typing import Final

from cotenant.controller.api.moment import Now
from cotenant.controller.api.permissions import must_be_admin
from cotenant.controller.api.submissions import Denied
from cotenant.controller.domain import Booking, DeviceId, bookings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, NoDevices, OpenBooking
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire

LATE_S: Final = 60.0
"""`now` may have been so long ago when it arrives here."""
OPEN_MAX: Final = 1_000
EVERY_S: Final[dict[str, float]] = {"": 0.0, "day": bookings.DAY_S, "week": bookings.WEEK_S}


class ReservationRequests:
    """The handlers of questions about reservations."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def reserve(self, request_id: int, request: wire.ReserveDevices, who: Identity) -> wire.Reserved:
        """Raises Denied: the reservation is not the sender's to make, too large, or cannot be had then."""
        core, engine = self._core, self._core.state.engine
        now = Now(core.clock.now_s(), core.clock.wall())
        key = request.idempotency_key and f"{who.name} {request.idempotency_key}"
        before = next(
            (each for each in engine.ledger.bookings.open.values() if key and each.booking.key == key), None
        )
        if before is not None:
            return wire.Reserved(request_id=request_id, reservation=reservation_view(engine, before, now))
        booking = _booking(engine, request, who, now, key)
        if who.role != "admin":
            _check_bounds(engine, booking, now)
        _check_limit(engine, booking)
        if len(engine.ledger.bookings.open) >= OPEN_MAX:
            raise Denied("refused", f"there are {OPEN_MAX} reservations already", "cancel some")
        found = engine.bookings.offer(booking, now.now_s)
        if isinstance(found, NoDevices):
            raise _no_devices(booking, found, now, request.east_s)
        core.happen(ev.BookingMade(booking=booking, by=who.name))
        core.audit(who, "reserve", booking.booking_id, f"{booking.gpus} GPUs for {booking.user}")
        made = engine.ledger.bookings.open[booking.booking_id]
        return wire.Reserved(request_id=request_id, reservation=reservation_view(engine, made, now))

    def cancel_reservations(
        self, request_id: int, request: wire.CancelReservations, who: Identity
    ) -> wire.Done:
        """Raises Denied: one is not known, or another user's; then none is cancelled."""
        known = self._core.state.engine.ledger.bookings.open
        for each in request.reservation_ids:
            if each not in known:
                raise Denied("not-found", f"no reservation {each}", "`cotenant reserve list` lists them")
            if who.role != "admin" and known[each].user != who.name:
                raise Denied("not-allowed", f"reservation {each} is {known[each].user}'s")
        for each in dict.fromkeys(request.reservation_ids):
            self._core.happen(ev.BookingCancelled(booking_id=each, by=who.name))
            self._core.audit(who, "cancel-reservation", each, "")
        lines = tuple(f"reservation {each} is cancelled" for each in request.reservation_ids)
        return wire.Done(request_id=request_id, lines=lines)

    def list_reservations(
        self, request_id: int, request: wire.ListReservations, who: Identity
    ) -> wire.Reservations:
        engine = self._core.state.engine
        now = Now(self._core.clock.now_s(), self._core.clock.wall())
        found = sorted(engine.ledger.bookings.open.values(), key=lambda each: (each.from_s, each.number))
        views = tuple(reservation_view(engine, each, now) for each in found)
        return wire.Reservations(request_id=request_id, reservations=views, now=now.at)


def _booking(engine: Engine, request: wire.ReserveDevices, who: Identity, now: Now, key: str) -> Booking:
    """What is asked for, as a reservation. Raises Denied: it makes no sense, or is for somebody else."""
    user = request.user or who.name
    if user != who.name:
        must_be_admin(who, "reserve devices for others")
    if request.from_unix_s < now.wall_s - LATE_S:
        raise Denied("usage", "the time at which it should begin has passed", "give a time that lies ahead")
    from_s = max(now.now_s, now.journal_s(request.from_unix_s))
    every_s = EVERY_S[request.every]
    ahead_s = engine.config.reservations.ahead_days_max * bookings.DAY_S
    try:
        return Booking(
            booking_id=f"r{engine.ledger.bookings.saved.next_number}",
            user=user,
            gpus=request.gpus,
            from_s=from_s,
            until_s=from_s + request.length_s,
            every_s=every_s,
            gpu_type=request.gpu_type,
            host_id=request.host_id,
            last_s=now.now_s + ahead_s if every_s and who.role != "admin" else None,
            key=key,
        )
    except ValueError as error:
        raise Denied("usage", str(error)) from None


def _check_bounds(engine: Engine, booking: Booking, now: Now) -> None:
    """Raises Denied: users may not have so much, or so far ahead."""
    settings = engine.config.reservations
    theirs = [each.booking for each in engine.ledger.bookings.open.values() if each.user == booking.user]
    hours = sum(each.gpus * each.length_s for each in (*theirs, booking)) / 3600.0
    if hours > settings.device_hours_max:
        raise Denied(
            "not-allowed",
            f"your reservations would be {hours:.4g} device-hours, and a user may have "
            f"{settings.device_hours_max:g} (reservations.device_hours_max)",
            "reserve less, cancel one, or ask an admin",
        )
    if booking.from_s - now.now_s > settings.ahead_days_max * bookings.DAY_S:
        raise Denied(
            "not-allowed",
            f"users reserve up to {settings.ahead_days_max:g} days ahead (reservations.ahead_days_max)",
            "take an earlier time, or ask an admin",
        )


def _check_limit(engine: Engine, booking: Booking) -> None:
    """Raises Denied: its user could not use so many devices at once. A reservation is nobody's but a user's;
    limits of organisations count for the jobs that are put there."""
    most = engine.config.limits.limit_for("user", booking.user).devices
    theirs = [each.booking for each in engine.ledger.bookings.open.values() if each.user == booking.user]
    would = bookings.most_at_once(booking, theirs)
    if 0 < most < would:
        beside = f" with those of {booking.user} at the same time" if would > booking.gpus else ""
        raise Denied(
            "not-allowed",
            f"it would be {would} devices at once{beside}, and user {booking.user} may hold {most} (limits)",
            "reserve less, take another time, or ask an admin",
        )


def _no_devices(booking: Booking, found: NoDevices, now: Now, east_s: int) -> Denied:
    """What could be had instead, by the sender's clock."""
    then = f"{found.gpus_then} of {booking.gpus} GPU{'s' * (booking.gpus > 1)} can be reserved then"
    if found.from_s is None:
        why = "whoever is on the others cannot be asked to leave in time, or has reserved them"
        return Denied("refused", f"{then}: {why}", "take fewer, or another time: `cotenant reserve list`")
    at = time.gmtime(now.wall_s - now.now_s + found.from_s + east_s)
    fewer = f", or {found.gpus_then} then" if found.gpus_then else ""
    return Denied(
        "refused", then, f"{booking.gpus} can be had from {time.strftime('%a %d %b %H:%M', at)}{fewer}"
    )


def reservation_view(engine: Engine, each: OpenBooking, now: Now) -> wire.ReservationView:
    booking = each.booking
    return wire.ReservationView(
        reservation_id=each.booking_id,
        user=each.user,
        gpus=booking.gpus,
        from_at=now.utc(each.from_s),
        until_at=now.utc(each.until_s),
        every="" if not booking.every_s else "day" if booking.every_s == bookings.DAY_S else "week",
        last_at=now.utc_if(booking.last_s),
        state="now" if each.is_closed else "planned",
        devices=each.devices,
        used=tuple(device_id for device_id in each.devices if _is_used(engine, each, device_id)),
        lent=tuple(each.lent),
    )


def _is_used(engine: Engine, each: OpenBooking, device_id: DeviceId) -> bool:
    return any(engine.jobs[job_id].spec.user == each.user for job_id in engine.tenants(device_id))
