"""A timeline in the trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure.

Rule: a device is a process there, and each of its lanes a thread, so that two tenants stand below each other.
A stay is a slice, and its phases are slices inside it. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from cotenant.controller.timeline.lanes import pieces, stays, waiting_lanes
from cotenant.controller.timeline.timeline import Segment, Timeline

TraceEvent = dict[str, Any]

PHASES: Final = {
    "loading": "load",
    "futile": "load for nothing",
    "running": "train",
    "checkpointing": "save",
}
POLICY, WAITING = 1, 2
"""Processes that are no device."""


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The timeline as a document in the format of Chrome's traces."""
    names = {each.job: each.name for each in timeline.jobs}
    events: list[TraceEvent] = [
        *_process(POLICY, "policy", 0),
        *_policies(timeline),
        *_process(WAITING, "waiting", len(timeline.devices) + 1),
    ]
    for wait, lane in waiting_lanes(timeline.waits):
        title = _title(wait.job, names)
        events.append(_slice(title, "wait", WAITING, lane, wait.start_s, wait.end_s, {"job": wait.job}))
    by_device = timeline.segments_by_device()
    for number, row in enumerate(timeline.devices, 1):
        process = WAITING + number
        events += _process(process, row.device, number)
        events += _device_events(timeline, by_device.get(row.device, []), process, names)
        events += [
            {
                "name": each.describe(lambda job: _title(job, names)),
                "cat": "preemption",
                "ph": "i",
                "s": "p",
                "pid": process,
                "tid": 0,
                "ts": _us(each.at_s),
            }
            for each in timeline.preemptions
            if each.device == row.device
        ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": timeline.title, "about": timeline.subtitle},
    }


def _device_events(
    timeline: Timeline, segments: list[Segment], process: int, names: dict[str, str]
) -> Iterator[TraceEvent]:
    known = {(each.job, each.attempt): each for each in timeline.attempts}
    lanes = set()
    for stay in stays(segments):
        lanes.add(stay.lane)
        about = known.get((stay.job, stay.attempt))
        told: TraceEvent = {"job": stay.job, "attempt": stay.attempt}
        if about is not None:
            told |= {"accumulation_steps": about.accumulation_steps, "from_step": about.resumed_from_step}
        title = _title(stay.job, names)
        yield _slice(title, "attempt", process, stay.lane, stay.start_s, stay.end_s, told)
    for piece in pieces(segments):
        told = {"beside": ", ".join(piece.beside) or None}
        name, lane = PHASES[piece.phase], piece.stay.lane
        yield _slice(name, "phase", process, lane, piece.start_s, piece.end_s, told)
    for lane in sorted(lanes):
        yield _metadata_event("thread_name", process, lane, {"name": f"tenant {lane + 1}"})


def _policies(timeline: Timeline) -> Iterator[TraceEvent]:
    starts_s = [*(each.at_s for each in timeline.policies), timeline.end_s]
    for each, end_s in zip(timeline.policies, starts_s[1:], strict=True):
        yield _slice(each.policy, "policy", POLICY, 0, each.at_s, end_s, {})


def _title(job: str, names: dict[str, str]) -> str:
    name = names.get(job, job)
    return name if name == job else f"{job} {name}"


def _slice(
    name: str, category: str, process: int, thread: int, start_s: float, end_s: float, told: TraceEvent
) -> TraceEvent:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": _us(start_s),
        "dur": _us(end_s) - _us(start_s),
        "args": told,
    }


def _process(process: int, name: str, place: int) -> list[TraceEvent]:
    return [
        _metadata_event("process_name", process, 0, {"name": name}),
        _metadata_event("process_sort_index", process, 0, {"sort_index": place}),
    ]


def _metadata_event(name: str, process: int, thread: int, told: TraceEvent) -> TraceEvent:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": told}


def _us(seconds: float) -> int:
    return round(1e6 * seconds)
