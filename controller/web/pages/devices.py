"""Devices: who shares each one, memory planned and used, what was measured and when, and why one is out.

Rule: what was not measured is a dash, never 0. Hosts in trouble stand first. At most `HOSTS_MAX` hosts are
shown, and it is said of how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cotenant.controller.domain import HostState, JobId, sharing_in_words
from cotenant.controller.present.devices import LEGEND, WIDE_COLUMNS, DeviceLine, reserved_in_words, rows_of
from cotenant.controller.present.jobs import left_s, left_text
from cotenant.controller.present.units import NONE, duration, size
from cotenant.controller.web.page import Asking, Page, Params
from cotenant.controller.web.pages.queue import RUNS, share_done
from cotenant.controller.web.rendering import about
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

HOSTS_MAX: Final = 100
JOBS_MAX: Final = 2_000
SLICES: Final = ("first", "second")
"""How tenants are told apart in a bar: by colour and by hatching."""


class DevicesLook(NamedTuple):
    nodes: wire.Nodes
    jobs: wire.Jobs


def look(asks: Asking, params: Params) -> DevicesLook:
    jobs = asks.ask(wire.ListJobs(states=RUNS, limit=JOBS_MAX))
    for job in jobs.jobs:
        asks.samples.note(wall_s(jobs.now), job)
    return DevicesLook(asks.ask(wire.ListNodes()), jobs)


# --- What is shown ----------------------------------------------------------------------------------


class BarPart(NamedTuple):
    """A tenant's part of a bar; all are parts of 100."""

    x: float
    width: float
    kind: str


class TenantLine(NamedTuple):
    job_id: JobId
    name: str
    planned: str
    share_done: float | None
    left: str
    """Empty: nothing is expected."""
    kind: str


class DeviceTile(NamedTuple):
    """The tile that shows one device."""

    line: DeviceLine
    state: str
    why: str
    slices: Sequence[BarPart]
    used_x: float | None
    """Where memory in use ends."""
    memory: str
    tenants: Sequence[TenantLine]
    source: str
    indicators: Sequence[tuple[str, str]]
    """Name, and the value or a dash."""


class HostTiles(NamedTuple):
    node: wire.NodeView
    seen: str
    tiles: Sequence[DeviceTile]


def fill(looked: DevicesLook, params: Params) -> Mapping[str, Any]:
    wanted = params.get("q").casefold()
    found = [node for node in looked.nodes.nodes if not wanted or wanted in node.host.casefold()]
    found.sort(
        key=lambda node: (node.state is HostState.OK and all(d.healthy for d in node.devices), node.host)
    )
    return {
        "hosts": [host_tiles(node, looked.jobs.jobs) for node in found[:HOSTS_MAX]],
        "of": len(found),
        "silent": [node for node in found if node.state in (HostState.SILENT, HostState.LOST)],
        "query": params.get("q"),
        "legend": [(name, f"{words} ({unit})") for name, (words, unit) in LEGEND.items()],
        "device_count": sum(len(node.devices) for node in found),
    }


def host_tiles(node: wire.NodeView, jobs: Sequence[wire.JobView]) -> HostTiles:
    seen = "never" if node.heartbeat_age_s is None else f"{duration(node.heartbeat_age_s)} ago"
    return HostTiles(node, seen, [tile(line) for line in rows_of([node], jobs)])


def tile(line: DeviceLine) -> DeviceTile:
    device, reading = line.device, line.device.reading
    used = reading.memory_used_mib if reading is not None else None
    whole_mib = device.memory_mib if device.memory_mib > 1 else None  # 1: nobody knows, as of a MIG instance.
    by_id = {job.job_id: job for job in line.jobs}
    planned_mib = dict(zip(device.jobs, device.jobs_planned_mib, strict=False))
    return DeviceTile(
        line=line,
        state=line.trouble or "ok",
        why=reserved_in_words(device)
        or device.note
        or (sharing_in_words(device) if device.kind == "cuda" else ""),
        slices=slices(device, whole_mib),
        used_x=None if used is None or whole_mib is None else round(min(100.0, 100.0 * used / whole_mib), 1),
        memory=f"planned {size(device.planned_mib)}, used {size(used)}, of {size(whole_mib)}",
        tenants=[
            _tenant(job_id, by_id.get(job_id), planned_mib.get(job_id, 0), kind_of(number))
            for number, job_id in enumerate(device.jobs)
        ],
        source=_source(line),
        indicators=_indicators(line),
    )


def slices(device: wire.DeviceView, whole_mib: int | None) -> list[BarPart]:
    """The parts of a device's bar, as wide as their planned memory; where nobody knows it, all alike."""
    planned = device.jobs_planned_mib
    parts = [100.0 * each / whole_mib if whole_mib else 100.0 / len(planned) for each in planned]
    scale = min(1.0, 100.0 / sum(parts)) if sum(parts) else 1.0
    found, x = [], 0.0
    for number, part in enumerate(parts):
        found.append(BarPart(round(x, 1), round(part * scale, 1), kind_of(number)))
        x += part * scale
    return found


def kind_of(number: int) -> str:
    return SLICES[number % len(SLICES)]


def _tenant(job_id: JobId, job: wire.JobView | None, planned_mib: int, kind: str) -> TenantLine:
    if job is None:
        return TenantLine(job_id, "", size(planned_mib), None, "", kind)
    return TenantLine(
        job_id,
        job.name,
        size(planned_mib),
        share_done(job),
        "" if left_s(job) is None else left_text(job, about),
        kind,
    )


def _source(line: DeviceLine) -> str:
    reading = line.device.reading
    if reading is None:
        return "nothing was read yet"
    source = reading.source or "no source"
    stale = ", old" if line.is_stale else ""
    note = f"; {reading.note}" if reading.note else ""
    return f"{source}, {duration(reading.age_s)} ago{stale}{note}"


def _indicators(line: DeviceLine) -> list[tuple[str, str]]:
    texts = {column.title: column.text(line) or NONE for column in WIDE_COLUMNS}
    return [(name, texts.get(name, NONE)) for name in LEGEND]


PAGE: Final = Page(
    name="devices",
    title="Devices",
    path="/devices",
    look=look,
    fill=fill,
    parts=("summary", "hosts"),
)
