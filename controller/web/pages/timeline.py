"""Timeline: who held which device when, drawn by the one renderer; zoom, and the same for Perfetto.

Rule: the picture is made here, on the server, so that it can be seen without JavaScript. What is too much for
one picture is left out and counted, by the renderer; the table below it says the same in words.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration, local_time
from cotenant.controller.timeline import CSS, Timeline, chrome_trace, fragment, render, timeline_of_view
from cotenant.controller.web.page import Asking, Page, Params
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

JOBS_MAX: Final = 500
"""Of a picture; those that waited are the last to be asked for."""
EXPORTED_MAX: Final = 10_000
ROWS_MAX: Final = 100
SPANS: Final = {
    300: "5 min",
    900: "15 min",
    3_600: "1 h",
    6 * 3_600: "6 h",
    86_400: "1 day",
    7 * 86_400: "7 days",
    30 * 86_400: "30 days",
}
SPANS_S: Final = tuple(SPANS)
USUAL_S: Final = 3_600
AGO_MAX_S: Final = 365 * 86_400


class Zoom(NamedTuple):
    """Which part is shown: so many seconds, that ended so long ago."""

    span_s: int
    ago_s: int

    def address(self, host: str, path: str = "/timeline") -> str:
        asked = {"span": self.span_s, "ago": self.ago_s or None, "host": host or None}
        return f"{path}?{urlencode({name: value for name, value in asked.items() if value is not None})}"


def zoom_of(params: Params) -> Zoom:
    """Whatever is no number of seconds is as if it was not said."""
    return Zoom(
        span_s=max(SPANS_S[0], min(SPANS_S[-1], _number(params.get("span"), USUAL_S))),
        ago_s=min(AGO_MAX_S, _number(params.get("ago"), 0)),
    )


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def question(zoom: Zoom, limit: int) -> wire.GetTimeline:
    return wire.GetTimeline(since_s=float(zoom.span_s + zoom.ago_s), until_s=float(zoom.ago_s), limit=limit)


def look(asks: Asking, params: Params) -> wire.TimelineView:
    return asks.ask(question(zoom_of(params), JOBS_MAX)).timeline


# --- What is shown ----------------------------------------------------------------------------------


class AttemptRow(NamedTuple):
    """An attempt, for those who do not see the picture."""

    job: wire.TimelineJob
    attempt: wire.AttemptView


def job_path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


COLUMNS: Final = (
    Column("job", lambda row: row.job.job_id),
    Column("name", lambda row: row.job.name),
    Column("attempt", lambda row: str(row.attempt.attempt), right=True),
    Column("devices", lambda row: ", ".join(row.attempt.devices)),
    Column("beside", lambda row: ", ".join(row.attempt.co_tenants) or "-"),
    Column("started", lambda row: local_time(row.attempt.launched_s)),
    Column("loading", lambda row: duration(_between(row.attempt.launched_s, row.attempt.trains_since_s))),
    Column("ended", lambda row: local_time(row.attempt.ended_s)),
    Column("how", lambda row: row.attempt.outcome or "goes on"),
)


def fill(view: wire.TimelineView, params: Params) -> Mapping[str, Any]:
    zoom, host = zoom_of(params), params.get("host")
    view = restrict_to_host(view, host)
    rows = [AttemptRow(job, attempt) for job in view.jobs for attempt in job.attempts]
    rows.sort(key=lambda row: -row.attempt.launched_s)
    return {
        "picture": fragment(drawable_timeline(view), job_path),
        "links": links(zoom, host),
        "spans": [(name, Zoom(s, zoom.ago_s).address(host), s == zoom.span_s) for s, name in SPANS.items()],
        "zoom": zoom,
        "host": host,
        "begin": local_time(wall_s(view.begin_at)),
        "end": local_time(wall_s(view.end_at)),
        "svg": zoom.address(host, "/timeline/picture.svg"),
        "chrome": zoom.address(host, "/timeline/trace.json"),
        "rows": rows[:ROWS_MAX],
        "of": len(rows),
        "columns": COLUMNS,
    }


def links(zoom: Zoom, host: str) -> list[tuple[str, str]]:
    """Nearer and farther around the middle, earlier and later by half of what is shown."""
    span_s, ago_s = zoom
    found = [("Earlier", Zoom(span_s, ago_s + span_s // 2))]
    if ago_s:
        found.append(("Later", Zoom(span_s, max(0, ago_s - span_s // 2))))
        found.append(("Now", Zoom(span_s, 0)))
    if span_s > SPANS_S[0]:
        half_s = max(SPANS_S[0], span_s // 2)
        found.append(("Zoom in", Zoom(half_s, ago_s + (span_s - half_s) // 2 if ago_s else 0)))
    if span_s < SPANS_S[-1]:
        twice_s = min(SPANS_S[-1], span_s * 2)
        found.append(("Zoom out", Zoom(twice_s, max(0, ago_s - (twice_s - span_s) // 2))))
    return [(name, to.address(host)) for name, to in found]


def restrict_to_host(view: wire.TimelineView, host: str) -> wire.TimelineView:
    """Only devices with this in their names, and only jobs that were on them."""
    if not host:
        return view
    wanted = host.casefold()
    devices = tuple(each for each in view.devices if wanted in each.device_id.casefold())
    jobs = tuple(
        job
        for job in view.jobs
        if any(wanted in device.casefold() for attempt in job.attempts for device in attempt.devices)
    )
    return structs.replace(view, devices=devices, jobs=jobs)


def drawable_timeline(view: wire.TimelineView) -> Timeline:
    offset_s = time.localtime(wall_s(view.begin_at)).tm_gmtoff
    return timeline_of_view(view, local_utc_offset_s=offset_s)


def _between(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else end_s - start_s


# --- Files ------------------------------------------------------------------------------------------


async def picture(request: Request) -> Response:
    return _file(render(await _ask_timeline(request)), "image/svg+xml", "timeline.svg")


async def trace(request: Request) -> Response:
    document = json.dumps(chrome_trace(await _ask_timeline(request)))
    return _file(document, "application/json", "timeline-trace.json")


async def _ask_timeline(request: Request) -> Timeline:
    params = Params(query=tuple(request.query_params.items()))
    asked = question(zoom_of(params), EXPORTED_MAX)
    found: wire.Timelined = await request.app.state.connections.ask(lambda asks: asks.ask(asked))
    return drawable_timeline(restrict_to_host(found.timeline, params.get("host")))


def _file(content: str, media_type: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)


async def style(request: Request) -> Response:
    return Response(CSS, media_type="text/css")


PAGE: Final = Page(
    name="timeline",
    title="Timeline",
    path="/timeline",
    look=look,
    fill=fill,
    parts=("times", "picture", "attempts"),
    every_s=5.0,
    routes=(
        Route("/timeline/picture.svg", picture),
        Route("/timeline/trace.json", trace),
        Route("/timeline/style.css", style),
    ),
)
