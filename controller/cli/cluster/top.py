"""`cotenant top`: devices and jobs, refreshed in place."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, Any, Final

from cotenant.controller.cli.cluster.device_view import WIDE_COLUMNS, rows_of
from cotenant.controller.cli.cluster.keyboard import Keyboard
from cotenant.controller.cli.cluster.top_page import Moment, page
from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import (
    EndpointFlag,
    JsonFlag,
    Listing,
    OutputFlag,
    chosen,
    show_listing,
    write_json,
)
from cotenant.controller.cli.frame.parameters import option
from cotenant.controller.cli.frame.screen import duration
from cotenant.controller.client import Client, Unreachable
from cotenant.controller.wire.clients import GetDecisions, GetStatus, ListJobs, ListNodes
from cotenant.controller.wire.views import utc

JOBS_MAX: Final = 500
DECISIONS_MAX: Final = 20
EVERY_S: Final = 1.0
LIVE_TIMEOUT_S: Final = 3.0
"""Then an open screen says that what it shows is old."""


def top(
    every: Annotated[
        float | None,
        option("-d", "--every", min=0.2, max=3600, metavar="S", help="Seconds between looks (default 1)."),
    ] = None,
    once: Annotated[bool, option("--once", help="Print it once and end.")] = False,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """A live table: what each device does, for which jobs, and what waits and why.

    q ends it, space looks again.

    A value that was not measured is shown as -. `-o wide` prints every indicator once, with its source.
    `-o jsonl` prints a line per device, again and again with --every.

    For example:

      cotenant top
      cotenant top --once
      cotenant top -o wide
      cotenant top -o jsonl -d 10 >> devices.jsonl
    """
    form = chosen(output, as_json)
    with asking(endpoint) as client:
        if form == "json":
            write_json(moment_json(look(client)))
        elif form == "jsonl" and every is not None and not once:
            stream(client, every)
        elif form != "table":
            show_listing(devices_of(look(client)), form)
        elif once or not screen.is_terminal() or os.environ.get("TERM") == "dumb":
            screen.say(page(look(client), screen.terminal_width(), None))
        else:
            live(client, EVERY_S if every is None else every)


def look(client: Client, timeout_s: float | None = None) -> Moment:
    """Raises Unreachable: one of the questions had no answer in time (default: the client's)."""
    return Moment(
        status=client.ask(GetStatus(), timeout_s),
        nodes=client.ask(ListNodes(), timeout_s),
        jobs=client.ask(ListJobs(limit=JOBS_MAX), timeout_s),
        decisions=client.ask(GetDecisions(limit=DECISIONS_MAX), timeout_s),
    )


def live(client: Client, every_s: float) -> None:
    """Redraws on the alternate screen until somebody wants no more. A controller that is away for a while,
    such as for its restart, does not end it.

    Raises:
        Unreachable: at the very first question.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    moment, asked_s, trouble = look(client), time.monotonic(), ""
    console = Console()
    with Keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as display:
        while True:
            width, height = console.size
            shown = page(moment, width, height, trouble)
            display.update(Text.from_ansi(shown, no_wrap=True, overflow="crop"), refresh=True)
            woken = keyboard.wait(every_s)
            if woken == "quit":
                return
            if woken == "resized":  # What is known is drawn anew at once.
                continue
            try:
                moment, asked_s, trouble = look(client, LIVE_TIMEOUT_S), time.monotonic(), ""
            except Unreachable:
                trouble = (
                    f"no answer from the controller for {duration(time.monotonic() - asked_s)}; this is old:"
                )


def stream(client: Client, every_s: float) -> None:
    """A line per device and look, until Ctrl-C or until nobody reads; none while nobody answers.

    Raises:
        Unreachable: at the very first question.
    """
    moment: Moment | None = look(client)
    while True:
        if moment is not None:
            show_listing(devices_of(moment), "jsonl")
            sys.stdout.flush()
        time.sleep(every_s)
        try:
            moment = look(client, LIVE_TIMEOUT_S)
        except Unreachable as error:
            screen.tell(f"no lines for now: {error}")
            moment = None


def devices_of(moment: Moment) -> Listing:
    return Listing(
        noun="device",
        rows=rows_of(moment.nodes.nodes, moment.jobs.jobs),
        as_json=lambda row: {
            "now": utc(moment.status.wall_s),
            "device": row.device.device_id,
            "state": row.trouble or "ok",
            "type": row.device.type,
            "jobs": row.device.jobs,
            "memory_mib": row.device.memory_mib,
            "planned_mib": row.device.planned_mib,
            "indicators": row.device.reading,
        },
        identity=lambda row: row.device.device_id,
        columns=(),
        wide_columns=WIDE_COLUMNS,
    )


def moment_json(moment: Moment) -> dict[str, Any]:
    return {
        "schema": "top/1",
        "now": utc(moment.status.wall_s),
        "policy": moment.status.policy,
        "uptime_s": moment.status.uptime_s,
        "jobs_by_state": moment.status.jobs_by_phase,
        "nodes": moment.nodes.nodes,
        "jobs": moment.jobs.jobs,
    }
