"""Questions about devices that are reserved for users, their answers, and the views in them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import field

from cotenant.controller.domain import DeviceId, HostId
from cotenant.controller.wire.clients.base import Done, Question, Reply
from cotenant.controller.wire.times import Utc
from cotenant.controller.wire.views import JsonView

Repeat = Literal["", "day", "week"]


class ReserveDevices(Question["Reserved"], frozen=True, kw_only=True, tag="reserve"):
    """Devices for a user's jobs, from a time on for so long."""

    gpus: int
    from_unix_s: float
    length_s: float
    every: Repeat = ""
    user: str = ""
    """Empty: the sender."""
    gpu_type: str = ""
    host_id: HostId = HostId("")
    east_s: int = 0
    """How far the sender's clocks are ahead of UTC: a refusal names other times by them."""
    idempotency_key: str = ""
    """A repeat with the same one finds the first one's reservation."""


class CancelReservations(Question[Done], frozen=True, kw_only=True, tag="cancel-reservations"):
    reservation_ids: tuple[str, ...]


class ListReservations(Question["Reservations"], frozen=True, kw_only=True, tag="reservations"):
    """Asks for all reservations that are not over."""


class ReservationView(JsonView, frozen=True, kw_only=True, tag="reservation/1"):
    """A reservation, at its present or next time."""

    reservation_id: str = field(name="reservation")
    user: str
    gpus: int
    from_at: Utc
    until_at: Utc
    every: Repeat
    last_at: Utc | None
    """One that comes again does not begin after this; null: it goes on."""
    state: Literal["planned", "now"]
    devices: tuple[DeviceId, ...]
    """Fewer than `gpus`: so many could not be replaced."""
    used: tuple[DeviceId, ...]
    """Those that its owner's jobs hold now."""
    lent: tuple[DeviceId, ...]
    """Those that others may use until its owner does."""


class Reserved(Reply, frozen=True, kw_only=True, tag="reserved"):
    reservation: ReservationView


class Reservations(Reply, frozen=True, kw_only=True, tag="reservations-told"):
    """The reservations, the first to begin first."""

    reservations: tuple[ReservationView, ...]
    now: Utc


class ReservedView(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a device is reserved now or next."""

    reservation_id: str = field(name="reservation")
    user: str
    from_at: Utc
    until_at: Utc
    is_now: bool = field(name="now")
    is_lent: bool = field(name="lent")


ReservationRequest = ReserveDevices | CancelReservations | ListReservations
ReservationReply = Reserved | Reservations
