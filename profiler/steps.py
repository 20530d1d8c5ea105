"""Step times from the job's own reports, kept apart by accumulation steps.

Rule: a report counts only if all the steps in it ran at one s and none of them was among the first of its
phase, which still pay for memory that is being allocated. What was dropped is not corrected for.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from cotenant.controller.wire import job
from cotenant.controller.wire.codec import Json


class StepSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Which s applies from which step on."""

    starts: tuple[int, ...]
    accumulation_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.starts))
        if (
            not self.starts
            or self.starts[0] != 0
            or not rising
            or len(self.starts) != len(self.accumulation_steps)
        ):
            raise ValueError(f"a schedule starts at step 0 and rises, got {self}")

    def phase(self, step_index: int) -> int:
        """The phase in which the step with this index (from 0) ran."""
        return bisect_right(self.starts, step_index) - 1

    def __str__(self) -> str:
        """As `COTENANT_ACCUMULATION_SCHEDULE` wants it."""
        return ",".join(f"{start}:{s}" for start, s in zip(self.starts, self.accumulation_steps, strict=True))


def alternating(accumulation_steps: Sequence[int], first_steps: int, phases: int) -> StepSchedule:
    """Visits each s in turn in phases that double: slow jobs show all of them soon, fast ones long enough."""
    starts = [0]
    for phase in range(phases - 1):
        starts.append(starts[-1] + first_steps * 2 ** (phase // len(accumulation_steps)))
    turns = tuple(accumulation_steps[phase % len(accumulation_steps)] for phase in range(phases))
    return StepSchedule(starts=tuple(starts), accumulation_steps=turns)


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """`count` optimizer steps, the last of them number `step`, took `elapsed_s` at s."""

    rank: int
    step: int
    count: int
    elapsed_s: float
    accumulation_steps: int


class LibraryHello(msgspec.Struct, frozen=True, kw_only=True):
    """The library is in use."""

    rank: int
    accumulates: bool


class FirstStepTaken(msgspec.Struct, frozen=True, kw_only=True):
    """The first optimizer step is done: the load has ended."""

    rank: int


class JobRefused(msgspec.Struct, frozen=True, kw_only=True):
    """Something failed in the job, in its own words."""

    rank: int
    error: str


Said = LibraryHello | FirstStepTaken | StepReport | JobRefused


_message: Json[dict[str, Any]] = Json(dict[str, Any], bytes_max=job.DATAGRAM_BYTES_MAX, from_python=True)


def parse(datagram: bytes) -> Said | None:
    """What a rank said, or None for anything else: unknown names are ignored and bad bytes are dropped."""
    try:
        message = _message.decode(datagram)
        if message["v"] != job.PROTOCOL_VERSION:
            return None
        return _typed(message["m"], message)
    except (ValueError, KeyError, TypeError):  # BadMessage is a ValueError.
        return None


def _typed(name: str, message: dict[str, object]) -> Said | None:
    rank = msgspec.convert(message["rank"], int)
    if name == job.HELLO:
        return LibraryHello(rank=rank, accumulates=message["accumulates"] is True)
    if name == job.FIRST_STEP:
        return FirstStepTaken(rank=rank)
    if name == job.FAILED:
        return JobRefused(rank=rank, error=str(message.get("error", ""))[:500])
    if name != job.STEP:
        return None
    fields = {key: message[key] for key in ("rank", "step", "count", "elapsed_s")}
    report = msgspec.convert(fields | {"accumulation_steps": message["s"]}, StepReport, strict=True)
    sound = report.step >= report.count >= 1 and report.accumulation_steps >= 1
    return report if sound and 0 < report.elapsed_s < math.inf else None


class StepTimes:
    """Collects reports of one rank and says what each s costs."""

    def __init__(self, schedule: StepSchedule, warm_up_steps: int) -> None:
        self._schedule = schedule
        self._warm_up_steps = warm_up_steps
        self._kept: dict[int, list[StepReport]] = {}

    def add(self, report: StepReport) -> bool:
        """Whether the report counts."""
        first = report.step - report.count
        phase = self._schedule.phase(first)
        in_one_phase = phase == self._schedule.phase(report.step - 1)
        counts = in_one_phase and first >= self._schedule.starts[phase] + self._settling_steps(phase)
        if counts:
            self._kept.setdefault(report.accumulation_steps, []).append(report)
        return counts

    def _settling_steps(self, phase: int) -> int:
        """The first visit of an s warms up; on a later one a single step is enough."""
        turns = self._schedule.accumulation_steps
        return max(1, self._warm_up_steps) if phase == turns.index(turns[phase]) else 1

    def steps(self, accumulation_steps: int) -> int:
        return sum(report.count for report in self._kept.get(accumulation_steps, ()))

    def elapsed_s(self, accumulation_steps: int) -> float:
        return sum(report.elapsed_s for report in self._kept.get(accumulation_steps, ()))

    def step_s(self, accumulation_steps: int) -> float:
        """The median over the reports; NaN before there is one."""
        reports = self._kept.get(accumulation_steps)
        if not reports:
            return math.nan
        return statistics.median(report.elapsed_s / report.count for report in reports)
