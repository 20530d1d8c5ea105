"""What happened, as values: who held which device when, who waited, what was preempted. Pure.

Rule: a device's row is divided among those who hold it at that moment. Alone, a job fills the row; beside a
co-tenant it keeps to its lane. Two bars therefore never overlap, and sharing is seen at a glance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

Phase = Literal["loading", "running", "checkpointing"]


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of one attempt on one device. A job on two devices has a segment for each."""

    job: str
    attempt: int
    device: str
    phase: Phase
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.start_s <= self.end_s:
            raise ValueError(f"a segment must end after it starts, got {self}")


class WaitSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a job held no device."""

    job: str
    start_s: float
    end_s: float


class AttemptSpan(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about one launch."""

    job: str
    attempt: int
    accumulation_steps: int = 1
    resumed_from_step: int | None = None


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """`newcomer` took the place of `victim`."""

    at_s: float
    device: str
    victim: str
    newcomer: str


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """From here on another policy decides. The first one starts at 0."""

    at_s: float
    policy: str


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A device and what is worth saying about it, e.g. `1 core, 1400 MiB`."""

    device: str
    about: str = ""


class JobName(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs are coloured in this order."""

    job: str
    name: str


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the picture shows. Seconds count from the first submission."""

    title: str
    subtitle: str = ""
    devices: tuple[DeviceRow, ...]
    jobs: tuple[JobName, ...]
    segments: tuple[Segment, ...]
    attempts: tuple[AttemptSpan, ...] = ()
    waits: tuple[WaitSpan, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    policies: tuple[PolicyChange, ...] = ()

    def __post_init__(self) -> None:
        devices = {row.device for row in self.devices}
        jobs = {each.job for each in self.jobs}
        strangers = [s for s in self.segments if s.device not in devices or s.job not in jobs]
        if strangers or not devices:
            raise ValueError(f"every segment needs a device row and a job name, got {strangers[:1]}")

    @property
    def end_s(self) -> float:
        ends = [s.end_s for s in self.segments] + [w.end_s for w in self.waits]
        moments = [p.at_s for p in self.policies] + [p.at_s for p in self.preemptions]
        return max([*ends, *moments, 1.0])


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt on one device, from its first phase to its last, and its lane there."""

    job: str
    attempt: int
    start_s: float
    end_s: float
    lane: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stay in one phase with the same co-tenants: slice number `rank` of `tenants`."""

    stay: Stay
    phase: Phase
    start_s: float
    end_s: float
    rank: int
    tenants: int


def stays(segments: Sequence[Segment]) -> tuple[Stay, ...]:
    """The stays on one device. Each takes the first lane that is free when it starts."""
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for s in segments:
        start_s, end_s = spans.get((s.job, s.attempt), (s.start_s, s.end_s))
        spans[s.job, s.attempt] = (min(start_s, s.start_s), max(end_s, s.end_s))
    lane_ends_s: list[float] = []
    found = []
    for (job, attempt), (start_s, end_s) in sorted(spans.items(), key=lambda item: (item[1], item[0])):
        lane = next(
            (i for i, busy_until_s in enumerate(lane_ends_s) if busy_until_s <= start_s), len(lane_ends_s)
        )
        lane_ends_s[lane : lane + 1] = [end_s]
        found.append(Stay(job=job, attempt=attempt, start_s=start_s, end_s=end_s, lane=lane))
    return tuple(found)


def pieces(segments: Sequence[Segment]) -> tuple[Piece, ...]:
    """The pieces on one device, by stay and time; neighbours that look the same are one."""
    everyone = stays(segments)
    cuts_s = sorted({t for s in segments for t in (s.start_s, s.end_s)})
    found = []
    for stay in everyone:
        own = [s for s in segments if (s.job, s.attempt) == (stay.job, stay.attempt)]
        found.extend(_joined(_slices(stay, own, everyone, cuts_s)))
    return tuple(found)


def _slices(
    stay: Stay, own: Sequence[Segment], everyone: Sequence[Stay], cuts_s: Sequence[float]
) -> Iterator[Piece]:
    """The stay between any two moments at which something changes on the device."""
    for start_s, end_s in pairwise(t for t in cuts_s if stay.start_s <= t <= stay.end_s):
        phase = next((s.phase for s in own if s.start_s <= start_s and end_s <= s.end_s), None)
        if phase is None:
            continue  # Between two phases nothing was recorded: nothing is drawn.
        lanes = sorted(other.lane for other in everyone if other.start_s <= start_s and end_s <= other.end_s)
        yield Piece(
            stay=stay,
            phase=phase,
            start_s=start_s,
            end_s=end_s,
            rank=lanes.index(stay.lane),
            tenants=len(lanes),
        )


def _joined(slices: Iterator[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in slices:
        last = joined[-1] if joined else None
        same = last is not None and (last.phase, last.rank, last.tenants, last.end_s) == (
            piece.phase,
            piece.rank,
            piece.tenants,
            piece.start_s,
        )
        if last is not None and same:
            joined[-1] = msgspec.structs.replace(last, end_s=piece.end_s)
        else:
            joined.append(piece)
    return joined


def waiting_lanes(waits: Sequence[WaitSpan]) -> tuple[tuple[WaitSpan, int], ...]:
    """Each wait with a lane of the waiting row in which it meets no other."""
    lane_ends_s: list[float] = []
    placed = []
    for wait in sorted(waits, key=lambda w: (w.start_s, w.end_s, w.job)):
        lane = next((i for i, end_s in enumerate(lane_ends_s) if end_s <= wait.start_s), len(lane_ends_s))
        lane_ends_s[lane : lane + 1] = [wait.end_s]
        placed.append((wait, lane))
    return tuple(placed)


def tick_step_s(span_s: float, ticks_max: int = 12) -> int:
    """A step of the axis that people like to count in, with at most `ticks_max` steps over the span."""
    nice = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
    return next(
        (step for step in nice if span_s / step <= ticks_max), 3600 * (1 + int(span_s / 3600 / ticks_max))
    )
