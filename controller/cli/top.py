"""`cotenant top`: devices and jobs, refreshed in place."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, NamedTuple

import typer

from cotenant.controller.cli import screen
from cotenant.controller.cli.asking import asking
from cotenant.controller.cli.device_view import WIDE_COLUMNS, columns_for, reading_json, rows_of
from cotenant.controller.cli.job_view import COLUMNS, clock_of, job_json
from cotenant.controller.cli.nodes import node_json
from cotenant.controller.cli.output import (
    EndpointFlag,
    JsonFlag,
    Listing,
    OutputFlag,
    chosen,
    show_listing,
    write_json,
)
from cotenant.controller.cli.screen import Column, duration, paint, plural
from cotenant.controller.client import Client
from cotenant.controller.domain.job import ON_DEVICES
from cotenant.controller.wire.clients import (
    Decisions,
    GetDecisions,
    GetStatus,
    Jobs,
    ListJobs,
    ListNodes,
    Nodes,
    Status,
)

JOBS_MAX: Final = 500


class Moment(NamedTuple):
    """All that one refresh asks for."""

    status: Status
    nodes: Nodes
    jobs: Jobs
    decisions: Decisions


def top(
    every: Annotated[
        float, typer.Option("-d", "--every", min=0.2, max=3600, metavar="S", help="Seconds.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """A live table: what each device does, for which jobs, and what waits and why. Ctrl-C ends it.

    A value that was not measured is shown as -. `-o wide` prints every indicator once, with its source.

    For example:

      cotenant top
      cotenant top --once
      cotenant top -o wide
    """
    form = chosen(output, as_json)
    with asking(endpoint) as client:
        if form == "json":
            write_json(moment_json(look(client)))
        elif form != "table":
            show_listing(devices_of(look(client)), form)
        elif once or not screen.is_terminal():
            print(page(look(client), screen.terminal_width() or 160, 1000))
        else:
            live(client, every)


def look(client: Client) -> Moment:
    return Moment(
        status=client.ask(GetStatus()),
        nodes=client.ask(ListNodes()),
        jobs=client.ask(ListJobs(limit=JOBS_MAX)),
        decisions=client.ask(GetDecisions(limit=10)),
    )


def live(client: Client, every_s: float) -> None:
    """Redraws on the alternate screen until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as display:
        while True:
            width, height = console.size
            display.update(Text.from_ansi(page(look(client), width, height)), refresh=True)
            time.sleep(every_s)


def devices_of(moment: Moment) -> Listing:
    return Listing(
        noun="device",
        rows=rows_of(moment.nodes.nodes, moment.jobs.jobs),
        as_json=lambda row: {
            "device": row.device.device_id,
            "type": row.device.type,
            "jobs": [job.job_id for job in row.jobs],
            "memory_mib": row.device.memory_mib,
            "planned_mib": row.planned_mib,
            "indicators": reading_json(row.reading),
        },
        identity=lambda row: row.device.device_id,
        columns=(),
        wide_columns=WIDE_COLUMNS,
    )


def moment_json(moment: Moment) -> dict[str, Any]:
    wall = clock_of(moment.jobs)
    return {
        "schema": "top/1",
        "now": screen.utc(moment.status.wall_s),
        "policy": moment.status.policy,
        "uptime_s": moment.status.uptime_s,
        "jobs_by_state": moment.status.jobs_by_phase,
        "nodes": [{"schema": "node/1", **node_json(node)} for node in moment.nodes.nodes],
        "jobs": [{"schema": "job/1", **job_json(job, wall)} for job in moment.jobs.jobs],
    }


# --- The page ---------------------------------------------------------------------------------------


def page(moment: Moment, width: int, height: int) -> str:
    """The whole screen; what does not fit is counted."""
    running = [job for job in moment.jobs.jobs if job.phase in ON_DEVICES]
    waiting = [job for job in moment.jobs.jobs if job.phase not in ON_DEVICES]
    devices = rows_of(moment.nodes.nodes, moment.jobs.jobs)
    room = max(6, height - 8)
    columns = columns_for(devices, width)
    parts = [headline(moment), section("Devices", columns, devices, width, room // 3)]
    parts.append(section("On devices", COLUMNS, running, width, room // 3))
    parts.append(section("Waiting", COLUMNS, waiting, width, room // 3))
    text = "\n\n".join(part for part in parts if part)
    return "\n".join(text.splitlines()[: max(1, height - 1)])


def headline(moment: Moment) -> str:
    status = moment.status
    counts = ", ".join(f"{count} {phase}" for phase, count in sorted(status.jobs_by_phase.items()) if count)
    parts = (
        paint("cotenant", "bold"),
        f"policy {paint(status.policy, 'cyan')}",
        f"{plural(status.hosts, 'host')}, {plural(status.devices, 'device')}",
        f"up {duration(status.uptime_s)}",
        screen.local_time(status.wall_s),
    )
    return f"{'  '.join(parts)}\n{counts or 'no jobs'}"


def section(title: str, columns: tuple[Column, ...], items: list[Any], width: int, room: int) -> str:
    if not items:
        return ""
    shown = items[: max(1, room - 2)]
    more = f"\n  and {len(items) - len(shown)} more" if len(items) > len(shown) else ""
    return f"{paint(title, 'bold')} ({len(items)})\n{screen.table(columns, shown, width)}{more}"
