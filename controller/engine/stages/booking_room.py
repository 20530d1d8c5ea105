"""Which devices a reservation can have, and when so many could be had if not at the time that was asked for.

Rule: a reservation gets only devices that will be there whatever arrives: whoever is on them then is its
owner, can be asked to leave, or reaches a hard time limit before. What a job is expected to take counts for
nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import bookings
from cotenant.controller.engine.stages.free_times import NEAR_S, KeptDevices, start_s
from cotenant.controller.engine.state.bookings import OpenBooking
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.planning import hard_s

STARTS_MAX: Final = 50
"""Times that are tried for a reservation that cannot be had when it was asked for."""
Places = dict[tuple[domain.HostId, str], list[tuple[bool, bool, domain.DeviceId]]]
"""By host and type the devices that a reservation can have, the best first."""


class NoDevices(msgspec.Struct, frozen=True, kw_only=True):
    """What could be had instead of a reservation for which there are too few devices."""

    gpus_then: int
    """So many at the time that was asked for."""
    from_s: float | None
    """When as many could be had for as long; None: no time is known."""


class BookingRoom:
    """The devices that reservations could have, as of one state of the ledger."""

    def __init__(self, ledger: Ledger, promised: Collection[KeptDevices]) -> None:
        """Takes the ledger, and the devices that are kept for promised ends."""
        self._ledger, self._promised = ledger, promised

    def find(
        self, booking: domain.Booking, present: OpenBooking | None = None
    ) -> tuple[domain.DeviceId, ...] | None:
        """The devices for a reservation, of one type and if possible of one host; None: there are too few.
        `present`: it has devices, and keeps what it can."""
        places = self._places(booking, present)
        options = []
        for (host_id, type), found in places.items():
            if len(best := found[: booking.gpus]) == booking.gpus:
                new, moves = sum(each[0] for each in best), sum(each[1] for each in best)
                options.append((new, moves, len(found), host_id, type))
        if options:
            *_, host_id, type = min(options)
            return tuple(each[-1] for each in places[host_id, type][: booking.gpus])
        for wanted in sorted({type for _, type in places}):
            hosts = sorted((-len(found), host) for (host, type), found in places.items() if type == wanted)
            spread = [each[-1] for _, host in hosts for each in places[host, wanted]]
            if len(spread) >= booking.gpus:
                return tuple(spread[: booking.gpus])
        return None

    def find_other(self, booking: domain.Booking) -> NoDevices:
        """What could be had instead."""
        counts: Counter[str] = Counter()
        for (_, type), found in self._places(booking, None).items():
            counts[type] += len(found)
        most = max(counts.values(), default=0)
        return NoDevices(gpus_then=min(most, booking.gpus), from_s=next(self._other_times(booking), None))

    def _other_times(self, booking: domain.Booking) -> Iterator[float]:
        """Later times at which it could begin: when something ends."""
        ledger, since_s = self._ledger, booking.from_s
        ends = {
            at_s + each.booking.length_s
            for each in ledger.bookings.open.values()
            for at_s in each.booking.begins_between(since_s, since_s + bookings.AHEAD_S)
        }
        ends.update(each.until_s for each in self._promised)
        ends.update(ledger.now_s + hard_s(job, ledger.now_s) for job in ledger.running.jobs_by_end())
        for at_s in sorted(each for each in ends if since_s < each < since_s + bookings.AHEAD_S)[:STARTS_MAX]:
            moved = msgspec.structs.replace(booking, from_s=at_s, until_s=at_s + booking.length_s)
            if self.find(moved) is not None:
                yield at_s

    def _places(self, booking: domain.Booking, present: OpenBooking | None) -> Places:
        ledger, tenants = self._ledger, self._ledger.holdings.tenants
        from_s, until_s = booking.from_s, booking.until_s
        if present is not None:
            from_s, until_s = present.from_s, present.until_s
        own = present.devices if present is not None else ()
        taken = self._taken(booking)
        places: Places = defaultdict(list)
        for device_id, device in ledger.devices.items():
            if (
                domain.is_type_for(booking.gpu_type, device.type)
                and booking.host_id in ("", device.host_id)
                and device_id not in taken
                and not is_lost(ledger, device_id, until_s)
                and ledger.hosts[device.host_id].takes_work
                and all(
                    leaves_in_time(ledger, job, booking.user, from_s)
                    for job in ledger.holdings.holders(device_id)
                )
            ):
                entry = (device_id not in own, bool(tenants(device_id)), device_id)
                places[device.host_id, device.type].append(entry)
        for found in places.values():
            found.sort()
        return places

    def _taken(self, booking: domain.Booking) -> set[domain.DeviceId]:
        """Devices that others have at one of its times."""
        others = [b for b in self._ledger.bookings.open.values() if b.booking_id != booking.booking_id]
        taken = {d for each in others if each.booking.overlaps(booking) for d in each.devices}
        for each in self._promised:
            if any(True for _ in booking.begins_between(each.from_s, each.until_s)):
                taken.update(each.devices)
        return taken


def is_lost(ledger: Ledger, device_id: domain.DeviceId, until_s: float) -> bool:
    """Whether a device is gone, or its host will be before then, or takes no work until somebody says so."""
    device = ledger.devices.get(device_id)
    host = ledger.hosts.get(device.host_id) if device is not None else None
    if device is None or host is None or host.lost or host.drained_by:
        return True
    if host.clears_at_s is not None and host.clears_at_s < until_s:
        return True
    closed = ledger.bookings.saved.closed.get(device_id)
    return not device.healthy if closed is None else closed.known is None


def leaves_in_time(ledger: Ledger, job: domain.Job, user: str, from_s: float) -> bool:
    """Whether a job that holds devices is the user's own, or can be made to have left them by then."""
    needs_s = hard_s(job, ledger.now_s)
    if job.spec.user == user or job.phase in domain.LEAVING or not needs_s:
        return True
    begins_s = start_s(ledger, job.waits_for) if job.phase is domain.RESERVED else ledger.now_s
    return begins_s + needs_s <= max(from_s, ledger.now_s) + NEAR_S
