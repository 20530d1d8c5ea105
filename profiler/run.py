"""One profiling run as values: what was asked for, how far it is, what it showed.

Rule: NaN means not measured, and `notes` says why; nothing here is a default or a guess.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from cotenant.controller.domain.perf import Profile, ProfilePoint
from cotenant.profiler.indicators.sources import Indicator, SourceName, Summary


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure. The defaults suit jobs of milliseconds to a few seconds per step."""

    accumulation_steps: tuple[int, ...] = (2, 1)
    """In this order: the smaller sub-batch first, because memory once taken may not be given back."""
    warm_up_steps: int = 2
    steps_min: int = 4
    measured_s_min: float = 1.0
    """Per s, in counted steps."""
    deadline_s: float = 90.0
    hello_timeout_s: float = 30.0
    """A job that has not used the library by then is measured from outside only."""
    blind_s: float = 5.0
    """How long such a job is observed after that."""

    def __post_init__(self) -> None:
        if not self.accumulation_steps or min(self.accumulation_steps) < 1 or self.steps_min < 1:
            raise ValueError(f"a plan needs accumulation steps and steps of at least 1, got {self}")
        if not 0 < self.deadline_s < math.inf:
            raise ValueError(f"a plan needs a deadline, got {self.deadline_s}")


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands, for a person who waits."""

    stage: Literal["loading", "measuring", "observing", "done"]
    elapsed_s: float
    steps: int = 0


class SoloPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank needed at one s."""

    accumulation_steps: int
    step_s: float
    """Median."""
    memory_mib: float
    """Peak of the rank that needed most."""
    steps: int


class SoloRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run alone showed. NaN: not measured, see `notes`."""

    points: tuple[SoloPoint, ...]
    memory_mib_peak: float
    duty_cycle: float
    load_s: float
    wall_s: float
    indicators: dict[Indicator, Summary]
    notes: tuple[str, ...] = ()
    source: SourceName = "cpu"

    def profile(self, batch_size: int) -> Profile:
        """As policies want it. Points need a batch size, and both a step time and a memory."""
        points = tuple(
            ProfilePoint(
                sub_batch=math.ceil(batch_size / point.accumulation_steps),
                accumulation_steps=point.accumulation_steps,
                step_s=point.step_s,
                memory_mib=point.memory_mib,
            )
            for point in self.points
        )
        return Profile(
            points=points,
            duty_cycle=None if math.isnan(self.duty_cycle) else self.duty_cycle,
            load_s=None if math.isnan(self.load_s) else self.load_s,
            steps=sum(point.steps for point in self.points),
            source=self.source,
        )


class ProfileFailed(Exception):
    """The job cannot be profiled; the message says what happened, where, and what to do."""
