"""Reservations as users ask for them: what is checked, refused with what instead, and shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cotenant.controller.domain import Booking, LimitSettings, bookings
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s
from tests.controller.station import ADMIN, ALICE, BOB, Station

HOUR_S = 3600.0


def asked(station: Station, who: Identity = ALICE, in_s: float = 600.0, **more: Any) -> Any:
    from_unix_s = station.wall_s + station.time_s + in_s
    given: dict[str, Any] = {"gpus": 1, "length_s": HOUR_S, **more}
    return station.ask(wire.ReserveDevices(from_unix_s=from_unix_s, **given), who)


def listed(station: Station) -> tuple[wire.ReservationView, ...]:
    return station.ask(wire.ListReservations()).reservations  # type: ignore[no-any-return]


def test_a_reservation_is_made_listed_and_cancelled(station: Station) -> None:
    station.join("h1")
    made = asked(station, every="day").reservation
    assert (made.reservation_id, made.user, made.state) == ("r1", "alice", "planned")
    assert wall_s(made.until_at) - wall_s(made.from_at) == HOUR_S
    assert listed(station) == (made,)
    (node,) = station.ask(wire.ListNodes()).nodes
    reserved = {each.device_id: each.reserved for each in node.devices}[made.devices[0]]
    assert (reserved.reservation_id, reserved.user, reserved.is_now) == ("r1", "alice", False)
    refused = station.ask(wire.CancelReservations(reservation_ids=("r1",)), BOB)
    assert (refused.code, refused.message) == ("not-allowed", "reservation r1 is alice's")
    assert station.ask(wire.CancelReservations(reservation_ids=("r2",)), ALICE).code == "not-found"
    done = station.ask(wire.CancelReservations(reservation_ids=("r1",)), ALICE)
    assert done.lines == ("reservation r1 is cancelled",)
    assert listed(station) == ()


def test_a_repeat_of_the_request_makes_no_other(station: Station) -> None:
    station.join("h1")
    first = asked(station, idempotency_key="k").reservation
    assert asked(station, idempotency_key="k").reservation == first
    assert len(listed(station)) == 1


def test_what_overlaps_is_refused_with_what_could_be_had(station: Station) -> None:
    station.join("h1")
    (node,) = station.ask(wire.ListNodes()).nodes
    count = len(node.devices)
    asked(station, ADMIN, gpus=count, length_s=12 * HOUR_S, user="alice")
    refused = asked(station, BOB, in_s=HOUR_S, east_s=7200)
    assert refused.code == "refused"
    assert refused.message == "0 of 1 GPU can be reserved then"
    at = "Thu 01 Jan 14:26"  # 10 minutes and 12 hours after the journal began at 1,000 s, two hours east.
    assert refused.hint == f"1 can be had from {at}"


@pytest.mark.parametrize(
    ("who", "more", "code", "text"),
    [
        (ALICE, {"user": "bob"}, "not-allowed", "only admins may reserve devices for others"),
        (ALICE, {"length_s": 49 * HOUR_S}, "not-allowed", "would be 49 device-hours, and a user may have 48"),
        (ALICE, {"in_s": 15 * 24 * HOUR_S}, "not-allowed", "users reserve up to 14 days ahead"),
        (ALICE, {"in_s": -120.0}, "usage", "has passed"),
        (ALICE, {"gpus": 0}, "usage", "at least 1 GPU"),
        (ALICE, {"length_s": 0.0}, "usage", "ends after it begins"),
        (ALICE, {"length_s": float("nan")}, "usage", "must be a number"),
        (ADMIN, {"length_s": 25 * HOUR_S, "every": "day"}, "usage", "ends before it does"),
        (ADMIN, {"gpu_type": "H200"}, "refused", "0 of 1 GPU"),
    ],
)
def test_what_nobody_may_have_is_refused(
    station: Station, who: Identity, more: dict[str, Any], code: str, text: str
) -> None:
    station.join("h1")
    refused = asked(station, who, **more)
    assert refused.code == code
    assert text in refused.message
    assert listed(station) == ()


def test_a_limit_of_devices_is_one_for_reservations_too(stations: Callable[..., Station]) -> None:
    limits = LimitSettings(user_devices=2, exceptions=("user bob devices=0",))
    station = stations(people=limits)
    station.join("h1", 4)
    refused = asked(station, gpus=3)
    assert refused.message == "it would be 3 devices at once, and user alice may hold 2 (limits)"
    assert asked(station, ADMIN, gpus=3, user="alice").code == "not-allowed", "she could not use them"
    assert asked(station).reservation and asked(station, in_s=600.0 + HOUR_S, gpus=2).reservation
    refused = asked(station, in_s=600.0 + HOUR_S / 2, gpus=1)
    assert "3 devices at once with those of alice at the same time" in refused.message
    assert asked(station, in_s=600.0, length_s=HOUR_S, gpus=1).reservation, "beside the first alone"
    assert asked(station, BOB, in_s=8 * HOUR_S, gpus=4).reservation, "he has no limit"


@pytest.mark.parametrize(
    ("others", "most"),
    [
        ((), 2),
        (((0, 100, 1), (100, 200, 1)), 3),
        (((0, 100, 1), (99, 200, 1)), 4),
        (((-50, 1, 3), (50, 60, 1)), 5),
        (((200, 300, 9), (-100, 0, 9)), 2),
        (((150 - bookings.DAY_S, 160 - bookings.DAY_S, 4, bookings.DAY_S),), 6),
        (((300 - bookings.DAY_S, 310 - bookings.DAY_S, 4, bookings.DAY_S),), 2),
    ],
)  # fmt: skip
def test_reservations_at_the_same_time_are_added_up(others: tuple[tuple[float, ...], ...], most: int) -> None:
    """By hand: one of two devices from 0 to 200, and others as (from, until, devices, every)."""

    def booking(from_s: float, until_s: float, gpus: float, every_s: float = 0.0) -> Booking:
        at_s = 2 * bookings.DAY_S
        return Booking(
            booking_id="r",
            user="ann",
            gpus=int(gpus),
            from_s=at_s + from_s,
            until_s=at_s + until_s,
            every_s=every_s,
        )

    assert bookings.most_at_once(booking(0, 200, 2), [booking(*each) for each in others]) == most


def test_one_that_comes_again_goes_on_as_long_as_a_user_may_reserve_ahead(station: Station) -> None:
    station.join("h1")
    assert asked(station, ALICE, every="week").reservation.last_at is not None
    assert asked(station, ADMIN, 2 * HOUR_S, every="week").reservation.last_at is None


def test_a_job_begins_by_the_wall_clock(station: Station) -> None:
    station.join("h1")
    job_id = station.submit(ALICE, begin_s=station.wall_s + 900.0)
    job = station.ask(wire.ShowJob(job_id=job_id)).job
    assert (job.phase, job.reason) == ("blocked", "does not start before 1970-01-01 00:31 UTC (--begin)")
    assert wall_s(job.begin_at) == station.wall_s + 900.0
