"""`cotenant timeline`: who held which device when, as a picture or for Perfetto."""

from __future__ import annotations

import json
import time
from typing import Annotated, Final, Literal

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag, whole_number, write_json
from cotenant.controller.client.asking import asking
from cotenant.controller.domain import texts
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.timeline import chrome_trace, render, timeline_of_view
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

JOBS_MAX: Final = 10_000


def timeline(
    since: Annotated[str, option("--since", metavar="TIME", help="Begin so long ago.")] = "1h",
    until: Annotated[
        str, option("--until", metavar="TIME", help="End so long ago.", show_default="now")
    ] = "",
    limit: Annotated[str, option("--limit", metavar="N", help="At most N jobs, the newest.")] = "2000",
    output: Annotated[
        Literal["svg", "chrome", "json"],
        option("-o", "--output", metavar="svg|chrome|json", help="chrome: trace events, for Perfetto."),
    ] = "svg",
    endpoint: EndpointFlag = None,
) -> None:
    """Show who held which device when: loads, training, saves, loads for nothing, waits, changes of the
    policy.

    svg is a picture; chrome is a file for ui.perfetto.dev, where a device is a process and each of its
    tenants a thread.

    For example:

      cotenant timeline > timeline.svg
      cotenant timeline --since 2d --until 1d > yesterday.svg
      cotenant timeline --since 8h -o chrome > night.json
    """
    request = wire.GetTimeline(
        since_s=duration_of("--since", since) or 0.0,
        until_s=duration_of("--until", until) or 0.0,
        limit=whole_number("--limit", limit, JOBS_MAX),
    )
    if request.until_s >= request.since_s:
        raise Problem("usage", f"--until {until or 0} ends before --since {since} begins")
    if output == "svg" and screen.is_terminal():
        raise Problem("usage", "a picture is for a file, not for a terminal", "cotenant timeline > t.svg")
    with asking(endpoint, from_journal=True) as client:
        view = client.ask(request).timeline
    if output == "json":
        write_json(view)
        return
    drawn = timeline_of_view(texts.escape_texts(view), local_utc_offset_s=offset_s(wall_s(view.begin_at)))
    if output == "svg":
        screen.say(render(drawn))
    else:
        screen.say(json.dumps(chrome_trace(drawn)))
    if view.more:
        screen.tell(f"{units.plural(view.more, 'more job')}: see --limit")


def offset_s(at_s: float) -> float:
    """How far this machine's local time is ahead of UTC."""
    return time.localtime(at_s).tm_gmtoff
