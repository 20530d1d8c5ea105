"""How a device's row is divided among those who hold it, and the waiting row among those who wait. Pure.

Rule: alone, a job fills the row; beside a co-tenant it keeps to its lane. Two bars therefore never overlap,
and sharing is seen at a glance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise

import msgspec

from cotenant.controller.timeline.timeline import Segment, SegmentKind, WaitSpan

LaneAttempt = tuple[str, int]
"""A job and the number of one of its attempts."""


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """The stay of one attempt on one device, from its first phase to its last, and its lane there."""

    job: str
    attempt: int
    start_s: float
    end_s: float
    lane: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stay in one phase with the same co-tenants: slice number `rank` of `tenants`."""

    stay: Stay
    phase: SegmentKind
    start_s: float
    end_s: float
    rank: int
    tenants: int
    beside: tuple[str, ...]
    """The jobs of the others."""


def stays(segments: Sequence[Segment]) -> tuple[Stay, ...]:
    """The stays on one device, in order. Each takes the first lane that is free when it starts."""
    spans: dict[LaneAttempt, tuple[float, float]] = {}
    for s in segments:
        start_s, end_s = spans.get((s.job, s.attempt), (s.start_s, s.end_s))
        spans[s.job, s.attempt] = (min(start_s, s.start_s), max(end_s, s.end_s))
    ordered = sorted(spans.items(), key=lambda item: (item[1], item[0]))
    return tuple(
        Stay(job=job, attempt=attempt, start_s=start_s, end_s=end_s, lane=lane)
        for ((job, attempt), (start_s, end_s)), lane in zip(
            ordered, lanes([span for _, span in ordered]), strict=True
        )
    )


def lanes(spans: Sequence[tuple[float, float]]) -> Iterator[int]:
    """Yields for each span (in order of their starts) the first lane that is free when the span starts."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for start_s, end_s in spans:
        while busy and busy[0][0] <= start_s:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else len(busy)
        heappush(busy, (end_s, lane))
        yield lane


def pieces(segments: Sequence[Segment]) -> tuple[Piece, ...]:
    """The pieces on one device, by stay and time; neighbours that look the same are one."""
    everyone = stays(segments)
    own: dict[LaneAttempt, list[Segment]] = {}
    for s in segments:
        own.setdefault((s.job, s.attempt), []).append(s)
    by_lane: dict[int, list[Stay]] = {}
    for stay in everyone:
        by_lane.setdefault(stay.lane, []).append(stay)
    cuts_s = sorted({t for s in segments for t in (s.start_s, s.end_s)})
    found: list[Piece] = []
    for stay in everyone:
        first, last = bisect_left(cuts_s, stay.start_s), bisect_right(cuts_s, stay.end_s)
        found.extend(_join_pieces(_slices(stay, own[stay.job, stay.attempt], by_lane, cuts_s[first:last])))
    return tuple(found)


def _slices(
    stay: Stay, own: Sequence[Segment], by_lane: dict[int, list[Stay]], cuts_s: Sequence[float]
) -> Iterator[Piece]:
    """The stay between any two moments at which something changes on the device."""
    for start_s, end_s in pairwise(cuts_s):
        phase = next((s.phase for s in own if s.start_s <= start_s and end_s <= s.end_s), None)
        if phase is None:
            continue  # Between two phases nothing was recorded: nothing is drawn.
        here = _present(by_lane, start_s, end_s)
        yield Piece(
            stay=stay,
            phase=phase,
            start_s=start_s,
            end_s=end_s,
            rank=here.index(stay),
            tenants=len(here),
            beside=tuple(sorted({other.job for other in here} - {stay.job})),
        )


def _present(by_lane: dict[int, list[Stay]], start_s: float, end_s: float) -> list[Stay]:
    """Who is there all the time from one change to the next, by lane. In a lane stays follow each other."""
    found = []
    for _, ordered in sorted(by_lane.items()):
        after = bisect_right(ordered, start_s, key=lambda stay: stay.start_s)
        if after and end_s <= ordered[after - 1].end_s:
            found.append(ordered[after - 1])
    return found


def _join_pieces(slices: Iterator[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in slices:
        last = joined[-1] if joined else None
        if last is not None and _look(last) == _look(piece) and last.end_s == piece.start_s:
            joined[-1] = msgspec.structs.replace(last, end_s=piece.end_s)
        else:
            joined.append(piece)
    return joined


def _look(piece: Piece) -> tuple[object, ...]:
    return piece.phase, piece.rank, piece.tenants, piece.beside


def waiting_lanes(waits: Sequence[WaitSpan]) -> tuple[tuple[WaitSpan, int], ...]:
    """Returns each wait with a lane of the waiting row in which the wait meets no other."""
    ordered = sorted(waits, key=lambda w: (w.start_s, w.end_s, w.job))
    return tuple(zip(ordered, lanes([(w.start_s, w.end_s) for w in ordered]), strict=True))
