"""`cotenant usage`: who used how much of the devices."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import (
    LIST_FORMATS,
    EndpointFlag,
    JsonFlag,
    Listing,
    ListOutputFlag,
    chosen,
    duration_of,
    show_listing,
    whole_number,
)
from cotenant.controller.cli.frame.parameters import option
from cotenant.controller.cli.frame.screen import NONE, Column, duration
from cotenant.controller.cli.jobs.history import SinceFlag, hours, tell_rest
from cotenant.controller.client import Client
from cotenant.controller.wire import clients as wire

ROWS_MAX: Final = 100_000

By = Literal["user", "kind", "organisation"]


def usage(
    since: SinceFlag = "",
    by: Annotated[
        By, option("--by", metavar="user|kind|organisation", help="Whose jobs count together.")
    ] = "user",
    limit: Annotated[str, option("--limit", metavar="N", help="At most N rows, the greatest.")] = "1000",
    output: ListOutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """Device-hours by user, kind of jobs or organisation: held, shared, lost; and how long their jobs waited.

    A second of a device counts once, in equal parts for the jobs that held it: the rows' sum is what `report`
    says was held. SHARED is what they held while training beside others; LOST is what having to leave cost:
    saves, loads and steps done once more. The one who held most stands first. Where fair share is on, DECAYED
    is what it counts: whoever has less than half of another's goes first.

    For example:

      cotenant usage --since 7d
      cotenant usage --by organisation --since 30d -o csv
      cotenant usage --by kind -o json
    """
    form = chosen(output, as_json, LIST_FORMATS)
    request = wire.GetUsage(by=by, since_s=duration_of("--since", since))
    most = whole_number("--limit", limit, ROWS_MAX)
    with asking(endpoint) as client:
        last, rows = all_rows(client, request)
    rows.sort(key=lambda row: (-row.held_device_s, row.name))
    show_listing(
        Listing(
            noun="use",
            plural="usage",
            rows=rows[:most],
            identity=lambda row: row.name or NONE,
            columns=(
                Column(by.upper(), lambda row: row.name or NONE, limit=60),
                *COLUMNS,
                *(() if last.half_life_s is None else (DECAYED,)),
            ),
            extra={
                "by": by,
                "now": last.now,
                "since": last.since,
                "half_life_s": last.half_life_s,
                "more": max(0, len(rows) - most),
                "forgotten_jobs": last.forgotten_jobs,
            },
            nothing="nobody had a job here" + (" since then" if since else ""),
        ),
        form,
    )
    if form in ("table", "wide"):
        if len(rows) > most:
            screen.tell(f"{screen.plural(len(rows) - most, 'more row')}: see --limit")
        tell_rest(0, last.forgotten_jobs)


def all_rows(client: Client, request: wire.GetUsage) -> tuple[wire.UsageRows, list[wire.UsageView]]:
    """The last answer, and the rows of all of them."""
    reply = client.ask(request)
    rows = list(reply.rows)
    while reply.next is not None and len(rows) < ROWS_MAX:
        reply = client.ask(wire.GetUsage(by=request.by, since_s=request.since_s, after=reply.next))
        rows += reply.rows
    return reply, rows


COLUMNS: Final = (
    Column("JOBS", lambda row: str(row.jobs), right=True),
    Column("ATTEMPTS", lambda row: str(row.attempts), rank=1, right=True),
    Column("DEVICE-H", lambda row: hours(row.held_device_s), right=True),
    Column("SHARED", lambda row: hours(row.shared_device_s), right=True),
    Column("LOST", lambda row: hours(row.lost_device_s), right=True),
    Column("WAITED", lambda row: duration(row.wait_s), right=True),
)
DECAYED: Final = Column("DECAYED", lambda row: hours(row.decayed_device_s or 0.0), right=True)
"""In device-hours, as DEVICE-H."""
