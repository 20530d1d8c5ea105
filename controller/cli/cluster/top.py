"""`cotenant top`: devices and jobs, refreshed in place."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag, FormFlag, Listing, show_listing, write_json
from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client, Unreachable
from cotenant.controller.client.output import read_end
from cotenant.controller.domain import JobId, texts
from cotenant.controller.present import job_page, screen
from cotenant.controller.present.consequences import JobVerb
from cotenant.controller.present.devices import WIDE_COLUMNS, rows_of
from cotenant.controller.present.problem import OK
from cotenant.controller.present.terminal import last_words
from cotenant.controller.present.top_page import Moment, page
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import utc

JOBS_MAX: Final = 500
DECISIONS_MAX: Final = 20
EVERY_S: Final = 1.0
PEEK_BYTES: Final = 16 * 1024
PEEK_LINES: Final = 60
LIVE_TIMEOUT_S: Final = 3.0
"""After so long without an answer an open screen says that its values are old."""


def top(
    every: Annotated[
        float | None,
        option("-d", "--every", min=0.2, max=3600, metavar="S", help="Seconds between looks (default 1)."),
    ] = None,
    once: Annotated[bool, option("--once", help="Print it once and end.")] = False,
    form: FormFlag = "table",
    endpoint: EndpointFlag = None,
) -> int:
    """Show a live table: what each device does, for which jobs, and what waits and why.

    q ends it, ? lists its keys: details and log of a job, sort, filter, cancel, hold.

    A value that was not measured is shown as -. `-o wide` prints every indicator once, with its source. `-o
    jsonl` prints a line per device, again and again with --every.

    For example:

      cotenant top
      cotenant top --once
      cotenant top -o wide
    """
    with asking(endpoint) as client:
        if form == "json":
            write_json(moment_json(look(client)))
        elif form == "jsonl" and every is not None and not once:
            stream(look(client), every, lambda: look(client, LIVE_TIMEOUT_S))
        elif form != "table":
            show_listing(devices_of(look(client)), form)
        elif once or not screen.is_terminal() or os.environ.get("TERM") == "dumb":
            screen.say(page(look(client), screen.terminal_width()))
        else:
            return live(client, EVERY_S if every is None else every)
    return OK


def look(client: Client, timeout_s: float | None = None) -> Moment:
    """Asks the controller the questions that one page of the table needs. Raises Unreachable: one of the
    questions had no answer in time (default: the client's)."""
    return Moment(
        status=client.ask(wire.GetStatus(), timeout_s),
        nodes=client.ask(wire.ListNodes(), timeout_s),
        jobs=client.ask(wire.ListJobs(limit=JOBS_MAX), timeout_s),
        decisions=client.ask(wire.GetDecisions(limit=DECISIONS_MAX), timeout_s),
        policy=client.ask(wire.GetPolicy(offers=False), timeout_s).current,
    )


class Questions:
    """What the screen asks a controller, and the page asks again and again."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def look(self) -> Moment:
        return texts.escape_texts(look(self._client, LIVE_TIMEOUT_S))

    def show(self, job_id: JobId, width: int) -> str:
        reply = texts.escape_texts(self._client.ask(wire.ShowJob(job_id=job_id), LIVE_TIMEOUT_S))
        return job_page.page(reply.job, width)

    def log(self, job_id: JobId) -> str:
        """The end of what rank 0 has written in the newest attempt."""
        end = read_end(self._client, job_id, None, 0, PEEK_BYTES, LIVE_TIMEOUT_S)
        said = end and (last_words(end.data, PEEK_LINES) or texts.one_line(end.missing))
        return said or "no output yet"

    def change(self, verb: JobVerb, job_id: JobId) -> str:
        reply = self._client.ask(wire.ChangeJobs(verb=verb, job_ids=(job_id,)), LIVE_TIMEOUT_S)
        return texts.one_line("; ".join(reply.lines) or f"{verb}: asked for job {job_id}")


def live(client: Client, every_s: float) -> int:
    """Runs until the person ends it; a controller that is away for a while does not end it.

    Raises:
        Unreachable: at the very first question.
    """
    from rich.console import Console

    from cotenant.controller.cli.cluster import top_live

    first = texts.escape_texts(look(client))
    top_live.run(Questions(client), first, every_s, Console(), sys.stdin)
    return OK


def stream(first: Moment, every_s: float, ask: Callable[[], Moment]) -> None:
    """A line per device and moment, until Ctrl-C or until nobody reads; none while nobody answers."""
    moment: Moment | None = first
    while True:
        if moment is not None:
            show_listing(devices_of(moment), "jsonl")
            sys.stdout.flush()
        time.sleep(every_s)
        try:
            moment = ask()
        except Unreachable as error:
            screen.tell(f"no lines for now: {error}")
            moment = None


def devices_of(moment: Moment) -> Listing:
    listing = Listing(
        noun="device",
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
        wide_columns=WIDE_COLUMNS,
    )
    return listing.fill(rows_of(moment.nodes.nodes, moment.jobs.jobs))


def moment_json(moment: Moment) -> dict[str, Any]:
    return {
        "schema": "top/1",
        "now": utc(moment.status.wall_s),
        "policy": moment.status.policy,
        "uptime_s": moment.status.uptime_s,
        "jobs_by_state": moment.status.jobs_by_phase,
        "classes": moment.policy.classes if moment.policy is not None else None,
        "nodes": moment.nodes.nodes,
        "jobs": moment.jobs.jobs,
    }
