"""`cotenant reserve` speaks the clock of whoever reserves, also when it changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from cotenant.controller.domain import DeviceId
from cotenant.controller.wire import clients, utc
from tests.building.stand_in import StandIn
from tests.controller.cli.conftest import Cotenant


@pytest.fixture(autouse=True)
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def made(asked: clients.ReserveDevices) -> clients.Reserved:
    return clients.Reserved(
        request_id=0,
        reservation=clients.ReservationView(
            reservation_id="r1", user="ada", gpus=1, every=asked.every, last_at=None, state="planned",
            from_at=utc(asked.from_unix_s), until_at=utc(asked.from_unix_s + asked.length_s),
            devices=(DeviceId("h/0"),), used=(), lent=(),
        ),
    )  # fmt: skip


def test_a_time_that_the_clocks_skip_begins_after_it(controller: StandIn, cotenant: Cotenant) -> None:
    controller.says(clients.ReserveDevices, made)
    shown = cotenant("reserve", "--from", "2099-03-08T02:30", "--for", "1h")
    assert shown.out == "r1: Sun 2099-03-08 03:00 for 1h00m, h/0, for ada\n" and not shown.err
    (asked,) = controller.asked_for(clients.ReserveDevices)
    assert asked.from_unix_s == datetime(2099, 3, 8, 7, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("begins", "every", "note"),
    [
        ("2099-01-05T09:00", "week", "10:00 from Mon 2099-03-09 on"),
        ("2099-07-01T09:00", "day", "08:00 from Sun 2099-11-01 on"),
        ("2099-01-05T09:00", "", ""),
    ],
)
def test_one_that_comes_again_says_what_the_clocks_do_to_it(
    begins: str, every: str, note: str, controller: StandIn, cotenant: Cotenant
) -> None:
    controller.says(clients.ReserveDevices, made)
    again = ("--every", every) if every else ()
    shown = cotenant("reserve", "--from", begins, "--for", "1h", *again)
    assert shown.err == (f"note: the clocks change, and it begins at {note}\n" if note else "")
