"""Who held how many device-hours: the rows of `usage`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from cotenant.controller.present.amounts import hours
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration
from cotenant.controller.wire import clients as wire

ROWS_MAX: Final = 100_000

By = Literal["user", "kind", "organisation"]


def all_rows(
    ask: Callable[[wire.GetUsage], wire.UsageRows], request: wire.GetUsage
) -> tuple[wire.UsageRows, list[wire.UsageView]]:
    """The last answer, and the rows of all of them; the one who held most stands first."""
    reply = ask(request)
    rows = list(reply.rows)
    while reply.next is not None and len(rows) < ROWS_MAX:
        reply = ask(wire.GetUsage(by=request.by, since_s=request.since_s, after=reply.next))
        rows += reply.rows
    return reply, sorted(rows, key=lambda row: (-row.held_device_s, row.name))


COLUMNS: Final = (
    Column("JOBS", lambda row: str(row.jobs), right=True),
    Column("ATTEMPTS", lambda row: str(row.attempts), rank=1, right=True),
    Column("DEVICE-H", lambda row: hours(row.held_device_s), right=True),
    Column("SHARED", lambda row: hours(row.shared_device_s), right=True),
    Column("IDLE", lambda row: hours(row.idle_device_s), right=True),
    Column("LOST", lambda row: hours(row.lost_device_s), right=True),
    Column("WAITED", lambda row: duration(row.wait_s), right=True),
    Column("KWH", lambda row: _kwh(row), right=True),
)


def _kwh(row: wire.UsageView) -> str:
    """With a `+` where the energy of some attempts is unknown, `?` where that of all is."""
    if row.energy_unknown_attempts >= row.attempts > 0:
        return "?"
    return f"{row.energy_kwh:.3g}{'+' if row.energy_unknown_attempts else ''}"


DECAYED: Final = Column("DECAYED", lambda row: hours(row.decayed_device_s or 0.0), right=True)
"""In device-hours, as DEVICE-H."""
