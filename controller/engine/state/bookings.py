"""Reservations of users: which devices each has, and which of these are closed to everybody else.

Rule: a closed device counts as unhealthy for whoever places jobs, so that no policy wants it; only
`placing.py` lets its owner's jobs through. What its host says of it is kept, and holds again when it opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import field

from cotenant.controller.domain import Booking, Device, DeviceId, HostReport
from cotenant.controller.planning import LENT, KeptFrom


class OpenBooking(msgspec.Struct, kw_only=True):
    """A reservation that is not over, at its present or next time."""

    booking: Booking
    number: int
    from_s: float
    until_s: float
    devices: tuple[DeviceId, ...] = ()
    """Empty until some are found, and while none are."""
    is_closed: bool = False
    """Its devices take no new work of others: it has begun, or is so near that tenants are asked to leave."""
    unused_since_s: dict[DeviceId, float] = field(default_factory=dict)
    """Since when its owner has not used a device, of those that it does not use now."""
    lent: list[DeviceId] = field(default_factory=list)

    @property
    def booking_id(self) -> str:
        return self.booking.booking_id

    @property
    def user(self) -> str:
        return self.booking.user

    @property
    def own(self) -> list[DeviceId]:
        """The devices that are closed for it now."""
        return [each for each in self.devices if each not in self.lent] if self.is_closed else []


class ClosedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that only one user's jobs get."""

    user: str
    note: str
    known: Device | None
    """As its host has it; None: its host does not have it now."""


class SavedBookings(msgspec.Struct, kw_only=True):
    """All reservations as a value."""

    open: dict[str, OpenBooking] = field(default_factory=dict)
    closed: dict[DeviceId, ClosedDevice] = field(default_factory=dict)
    next_number: int = 1
    alarm_s: float = -1.0
    """The next alarm that is scheduled."""


class Bookings:
    """The reservations of one ledger, with the index that policies see."""

    def __init__(self) -> None:
        self.saved = SavedBookings()
        self.kept: dict[DeviceId, tuple[KeptFrom, ...]] = {}
        """As `View.kept`."""

    @property
    def open(self) -> Mapping[str, OpenBooking]:
        return self.saved.open

    def add(self, booking: Booking, now_s: float) -> None:
        """Takes in a reservation, at the first of its times that is not over."""
        number = self.saved.next_number
        self.saved.next_number += 1
        found = OpenBooking(booking=booking, number=number, from_s=booking.from_s, until_s=booking.until_s)
        self.saved.open[booking.booking_id] = found
        if found.until_s <= now_s:
            self.go_on(found, now_s)

    def drop(self, each: OpenBooking) -> None:
        """It is over for good; its devices must be open."""
        del self.saved.open[each.booking_id]

    def go_on(self, each: OpenBooking, now_s: float) -> None:
        """Its time is over: the next one, if it comes again; its devices must be open."""
        assert not each.own
        each.is_closed, each.lent, each.unused_since_s = False, [], {}
        ahead = each.booking.begins_between(now_s, now_s + 2 * each.booking.every_s)
        begins_s = next((at_s for at_s in ahead if at_s + each.booking.length_s > now_s), None)
        if not each.booking.every_s or begins_s is None:
            self.drop(each)
            return
        each.from_s, each.until_s = begins_s, begins_s + each.booking.length_s

    def refresh(self) -> None:
        """The index after any change."""
        self.kept.clear()
        for each in self.saved.open.values():
            mine = KeptFrom(LENT if each.is_closed else each.from_s, each.user)
            for device_id in each.lent if each.is_closed else each.devices:
                self.kept[device_id] = (*self.kept.get(device_id, ()), mine)

    # --- Closed devices ----------------------------------------------------------------------------

    def admits(self, device: Device, user: str) -> bool:
        """Whether a job of the user may have a device that takes work, or would if it were not closed."""
        closed = self.saved.closed.get(device.device_id)
        return device.healthy if closed is None else closed.user == user and closed.known is not None

    def as_closed(self, report: HostReport) -> HostReport:
        """The report of a host with the devices that are closed out of service; what it says of them is
        noted."""
        closed = self.saved.closed
        if not any(device.device_id in closed for device in report.devices):
            return report
        devices = (
            msgspec.structs.replace(device, healthy=False, note=closed[device.device_id].note)
            if device.healthy and device.device_id in closed
            else device
            for device in report.devices
        )
        return msgspec.structs.replace(report, devices=tuple(devices))

    def note_report(self, report: HostReport) -> None:
        """A host has said anew what it has; `as_closed` is what counts."""
        said = {device.device_id: device for device in report.devices if device.healthy}
        for device_id, closed in self.saved.closed.items():
            if device_id.rpartition("/")[0] == report.host_id:
                known = said.get(device_id)
                self.saved.closed[device_id] = msgspec.structs.replace(closed, known=known)

    def close(self, each: OpenBooking, devices: Iterable[Device]) -> None:
        note = f"reserved for {each.user} ({each.booking_id})"
        for device in devices:
            known = device if device.healthy else None
            self.saved.closed[device.device_id] = ClosedDevice(user=each.user, note=note, known=known)
