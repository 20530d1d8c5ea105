"""What happened, as values: who held which device when, who waited, what was preempted. Pure.

Rule: whoever has a history to show, live or simulated, says it in these values; every picture and export is
made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

SegmentKind = Literal["loading", "futile", "running", "checkpointing"]
"""`futile`: a load that ended in a preemption before its first step."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of one attempt on one device. A job on two devices has a segment for each."""

    job: str
    attempt: int
    device: str
    phase: SegmentKind
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
    """`victim` saved and left: for `newcomer`, or, where that is empty, for the reason that `why` gives."""

    at_s: float
    device: str
    victim: str
    newcomer: str = ""
    why: str = ""
    """Such as `preempted by ann, by hand`; empty: not known."""

    def describe(self, name_of: Callable[[str], str]) -> str:
        victim = name_of(self.victim)
        if self.newcomer:
            return f"{victim} saves and makes room for {name_of(self.newcomer)}"
        return f"{victim} saves: {self.why}" if self.why else f"{victim} saves and leaves"


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """The moment from which another policy decides. The first one starts at 0."""

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
    """All that is shown. Seconds count from the first submission, or from where a window begins."""

    title: str
    subtitle: str = ""
    devices: tuple[DeviceRow, ...]
    jobs: tuple[JobName, ...]
    segments: tuple[Segment, ...]
    attempts: tuple[AttemptSpan, ...] = ()
    waits: tuple[WaitSpan, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    policies: tuple[PolicyChange, ...] = ()
    window_s: float = 0.0
    """The least that is shown, even if nothing happens at its end."""
    local_zero_s: float | None = None
    """The viewer's local time at 0, as seconds since 1970; None: the axis counts seconds."""

    def __post_init__(self) -> None:
        devices = {row.device for row in self.devices}
        jobs = {each.job for each in self.jobs}
        strangers = [s for s in self.segments if s.device not in devices or s.job not in jobs]
        if strangers or not devices:
            raise ValueError(f"every segment needs a device row and a job name, got {strangers[:1]}")

    def segments_by_device(self) -> dict[str, list[Segment]]:
        """The segments of each device that has some."""
        found: dict[str, list[Segment]] = {}
        for segment in self.segments:
            found.setdefault(segment.device, []).append(segment)
        return found

    @property
    def end_s(self) -> float:
        ends = [s.end_s for s in self.segments] + [w.end_s for w in self.waits]
        moments = [p.at_s for p in self.policies] + [p.at_s for p in self.preemptions]
        return max([*ends, *moments, self.window_s, 1.0])
