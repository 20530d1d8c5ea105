"""Reservations: their devices are there when they begin, for their owner alone, and nobody has to wait for
nothing."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.domain import Booking, HostId, ReservationSettings, bookings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.stages.booking_room import NoDevices
from cotenant.controller.policies import registry
from tests.controller.building import Desk, report
from tests.controller.engine.test_promises import LONG, SHORT, promised

POLICIES = sorted(name for name in registry.ours_available() if not name.startswith(("las", "interval")))
WAITS_FOR_SHARES = ("afs-l", "max-min", "pcs", "themis")
"""These divide devices among all that wait, those included that could not start now."""
QUICK: dict[str, Any] = {"load_s": 10.0, "pause_s": 5.0}
SPOT: dict[str, Any] = {"resumable": True, "user": "bob", **QUICK}
RIGID: dict[str, Any] = {"resumable": False, "user": "bob", **QUICK}


def booked(gpus: int = 1, from_s: float = 1000.0, until_s: float = 5000.0, **more: Any) -> Booking:
    return Booking(**{"booking_id": "r1", "user": "ann", **more}, gpus=gpus, from_s=from_s, until_s=until_s)


def book(desk: Desk, gpus: int = 1, from_s: float = 1000.0, until_s: float = 5000.0, **more: Any) -> Any:
    made = booked(gpus, from_s, until_s, **more)
    assert isinstance(desk.engine.bookings.offer(made, desk.now_s), tuple)
    desk.tell(ev.BookingMade(booking=made, by=made.user))
    return desk.engine.ledger.bookings.open[made.booking_id]


def refused(desk: Desk, *of: Any, **more: Any) -> NoDevices:
    found = desk.engine.bookings.offer(booked(*of, **more), desk.now_s)
    assert isinstance(found, NoDevices), found
    return found


def leaves(desk: Desk, job_id: int) -> None:
    desk.durable(job_id, 10)
    desk.end(job_id, "stopped")


# --- Who may be there before it begins ---------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_only_jobs_that_will_have_left_are_placed_on_reserved_devices(policy: str) -> None:
    desk = Desk(policy)
    book(desk)
    desk.submit(1, **RIGID)
    desk.submit(2, time_limit_s=2000.0, **RIGID)
    assert [desk.phase(each) for each in (1, 2)] == ["queued", "queued"]
    assert "1 device that would suit it is reserved for ann (r1) in 16m40s" in "".join(
        map(str, desk.engine.explain(desk.job(1).job_id, desk.now_s))
    )
    desk.submit(3, time_limit_s=500.0, **RIGID)
    assert policy in WAITS_FOR_SHARES or desk.phase(3) == "loading", "the first two are not waited for"


@pytest.mark.parametrize("policy", POLICIES)
def test_who_can_be_preempted_in_time_may_stay_until_then(policy: str) -> None:
    desk = Desk(policy)
    book(desk)
    desk.run(1, **SPOT)
    desk.wait(994.0 - desk.now_s)
    assert desk.phase(1) == "running"
    desk.wait(2.0)
    assert desk.phase(1) == "checkpointing"
    assert "makes room for ann, who has reserved its devices (r1)" in str(desk.job(1).reason)
    leaves(desk, 1)
    assert desk.phase(1) == "queued"
    desk.submit(2, **QUICK, user="ann")
    desk.wait(1000.0 - desk.now_s)
    assert desk.phase(2) == "loading"
    assert desk.phase(1) == "queued"


def test_no_new_one_comes_so_late_that_loading_was_for_nothing() -> None:
    desk = Desk()
    book(desk)
    desk.wait(990.0)
    desk.submit(1, **SPOT)
    assert desk.phase(1) == "queued"


def test_its_owners_jobs_may_run_into_it() -> None:
    desk = Desk()
    book(desk)
    desk.submit(1, **{**RIGID, "user": "ann"})
    assert desk.phase(1) == "loading"
    desk.start(1, resumable=False)
    desk.wait(2000.0)
    assert desk.phase(1) == "running"


def test_a_job_that_waits_too_long_for_its_victims_gets_nothing_there() -> None:
    desk = Desk("srtf")
    desk.run(1, expected_s=9000.0, **SPOT)
    book(desk)
    desk.submit(2, time_limit_s=900.0, expected_s=100.0, **RIGID)
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "reserved")
    desk.wait(200.0)
    desk.submit(3, hold=True)
    assert desk.phase(2) == "queued"


# --- While it is on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_its_devices_are_the_owners_alone_and_its_jobs_are_not_preempted(policy: str) -> None:
    desk = Desk(policy)
    desk.submit(1, hold=True, expected_s=5000.0, **{**SPOT, "user": "ann"})
    book(desk, from_s=10.0)
    desk.wait(20.0)
    desk.submit(2, expected_s=5.0, **SPOT)
    assert desk.phase(2) == "queued"
    desk.tell(ev.ReleaseRequested(job_id=desk.job(1).job_id, by="ann"))
    assert desk.phase(1) == "loading"
    desk.start(1)
    desk.wait(500.0)
    assert (desk.phase(1), desk.phase(2)) == ("running", "queued")
    desk.wait(5000.0 - desk.now_s)
    assert desk.engine.ledger.bookings.open == {}
    desk.submit(3, hold=True)
    assert desk.phase(1) in ("running", "checkpointing"), "it goes on as others do"


def test_the_owners_jobs_go_there_in_the_policys_order() -> None:
    desk = Desk("sjf", report(devices=2))
    for number, expected_s in ((1, 300.0), (2, 100.0), (3, 200.0)):
        desk.submit(number, hold=True, expected_s=expected_s, user="ann")
    book(desk, 2, from_s=10.0)
    desk.wait(15.0)
    for number in (1, 2, 3):
        desk.tell(ev.ReleaseRequested(job_id=desk.job(number).job_id, by="ann"))
    assert [desk.phase(each) for each in (1, 2, 3)] == ["loading", "loading", "queued"]
    desk.start(1)
    desk.end(1)
    assert desk.phase(3) == "loading"


def test_unused_devices_are_lent_and_taken_back_at_once() -> None:
    desk = Desk(make=registry.make)
    book(desk, from_s=10.0)
    desk.wait(10.0)
    desk.submit(1, **RIGID)
    desk.submit(2, **SPOT)
    assert [desk.phase(each) for each in (1, 2)] == ["queued", "queued"]
    desk.wait(ReservationSettings().lend_after_s)
    assert [desk.phase(each) for each in (1, 2)] == ["queued", "loading"]
    assert "lent by ann (r1): only jobs that can resume" in "".join(
        map(str, desk.engine.explain(desk.job(1).job_id, desk.now_s))
    )
    desk.start(2)
    desk.submit(3, user="ann", **QUICK)
    assert (desk.phase(2), desk.phase(3)) == ("checkpointing", "reserved")
    leaves(desk, 2)
    assert (desk.phase(2), desk.phase(3)) == ("queued", "loading")


def test_it_comes_again() -> None:
    desk = Desk()
    each = book(desk, from_s=1000.0, until_s=5000.0, every_s=bookings.DAY_S)
    desk.wait(6000.0)
    assert each.from_s == 1000.0 + bookings.DAY_S
    desk.submit(1, time_limit_s=3600.0, **RIGID)
    assert desk.phase(1) == "loading"
    desk.start(1, resumable=False)
    desk.end(1)
    desk.wait(1000.0 + bookings.DAY_S - desk.now_s)
    desk.submit(2, **SPOT)
    assert desk.phase(2) == "queued"


def test_a_cancelled_one_keeps_nobody_back() -> None:
    desk = Desk()
    book(desk, from_s=10.0)
    desk.wait(20.0)
    desk.submit(1, **RIGID)
    desk.tell(ev.BookingCancelled(booking_id="r1", by="ann"))
    assert desk.phase(1) == "loading"
    assert desk.engine.ledger.bookings.open == {}


# --- Which devices -------------------------------------------------------------------------------------


def test_devices_are_those_that_will_be_there() -> None:
    desk = Desk("fifo", report("a", 2), report("b", 2))
    desk.run(1, gpus=2, resumable=False, user="bob")
    assert book(desk, 2).devices == ("b/cpu0", "b/cpu1")
    found = refused(desk, 1, booking_id="r2")
    assert (found.gpus_then, found.from_s) == (0, 5000.0)
    assert refused(desk, 3, 6000.0, 7000.0, booking_id="r2").gpus_then == 2
    assert isinstance(desk.engine.bookings.offer(booked(2, 6000.0, 7000.0, booking_id="r2"), 0.0), tuple)


def test_one_that_comes_again_is_in_the_way_of_all_that_it_meets() -> None:
    desk = Desk()
    book(desk, every_s=bookings.WEEK_S)
    assert (
        refused(desk, 1, 1000.0 + bookings.WEEK_S, 1001.0 + bookings.WEEK_S, booking_id="r2").from_s
        == 5000.0 + bookings.WEEK_S
    )
    assert (
        refused(
            desk, 1, bookings.DAY_S + 4999.0, bookings.DAY_S + 9e3, booking_id="r2", every_s=bookings.DAY_S
        ).gpus_then
        == 0
    )


def test_a_device_that_is_lost_is_replaced() -> None:
    desk = Desk("fifo", *(report(name, 1, checkpoint_domain="d") for name in "ab"))
    each = book(desk)
    assert each.devices == ("a/cpu0",)
    desk.tell(ev.HostDrained(host_id=HostId("a"), by="root"))
    assert each.devices == ("b/cpu0",)
    desk.run(1, **SPOT)
    desk.wait(1000.0 - desk.now_s)
    assert desk.phase(1) == "checkpointing"
    leaves(desk, 1)
    desk.tell(ev.HostResumed(host_id=HostId("a"), by="root"))
    assert desk.hosts(1) == ("a",)
    desk.tell(ev.HostLost(host_id=HostId("b"), by="root"))
    assert each.devices == ("a/cpu0",)
    assert desk.phase(1) in ("stopping", "checkpointing")


def test_promises_and_reservations_respect_each_other() -> None:
    desk = Desk("srtf")
    book(desk)
    assert promised(desk, 1, time_limit_s=400.0, **SHORT) < 1000.0
    assert promised(desk, 2, **LONG) > 5000.0
    assert refused(desk, 1, 5000.0, 5500.0, booking_id="r2").from_s is not None


def test_an_agent_that_starts_anew_changes_nothing() -> None:
    desk = Desk()
    book(desk, from_s=10.0)
    desk.wait(20.0)
    desk.submit(1, **SPOT)
    desk.tell(ev.HostJoined(report=report()))
    assert desk.phase(1) == "queued"
    desk.restart()
    desk.submit(2, **SPOT)
    assert desk.phase(2) == "queued"
    desk.tell(ev.BookingCancelled(booking_id="r1", by="ann"))
    assert desk.phase(1) == "loading"
