"""The profile of a job: what a step of it takes, watched while it trains. Pure.

Rule: the job is only watched, and makes the steps that it would make without us, at its own s. Only a run
that is there to be measured visits several s, by a schedule that is fixed before it starts. A step counts if
it was made while nobody shared the job's devices, behind the first ones of the attempt or of a visit. What
was not measured is absent: nothing here is a default or a guess.

Source: Castor section 7, which profiles each job for T_prof before it is admitted to the queue. Departs from
it in that the job's own first attempt is the run (nobody's script is started twice), and in that T_prof
counts only time alone, so that a co-tenant interrupts the profile and does not spoil it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

import msgspec

from cotenant.controller import performance
from cotenant.profiler.indicators.sources import Indicator, Summary, Timed, Windows

SAMPLE_PERIOD_S: Final = 0.5
"""How often a source is asked for its samples; some take several in that time."""
FIRST_PART: Final = 0.1
"""The share of T_prof after which there is a first result."""
REPORTS_MAX: Final = 10_000
"""Kept per s; a profile of any length has a bounded number."""
BLIND_AFTER_S: Final = 60.0
"""A job that has not said a word so long after its start is watched from outside, until it does."""
EDGES_KEPT: Final = 4


class _Measured(msgspec.Struct, kw_only=True):
    """What one s was seen to need."""

    step_times: list[float] = []
    """Seconds per step, one per report."""
    steps: int = 0
    memory_mib: float | None = None
    """Of the process that needed most."""


class InPlace:
    """The profile of one attempt. The caller passes on what it hears."""

    def __init__(
        self,
        *,
        budget_s: float,
        visits: tuple[performance.Visit, ...],
        batch_size: int | None,
        started_s: float,
    ) -> None:
        """`budget_s` is T_prof, in seconds alone from the first steps on. `visits`: which s the job uses
        when, without gaps; the first one's is the s that it was started with."""
        self._budget_s = budget_s
        self._visits = visits
        self._ordered = visits[0].s
        self._batch_size, self._is_said = batch_size, batch_size is not None
        self._spent_s = 0.0
        self._clock_s = started_s
        self._alone_since_s: float | None = started_s
        self._began_step: int | None = None
        """The first step that was heard of."""
        self._step = 0
        self._is_training = self._is_outside = False
        self._steady_since_s: float | None = None
        """Since when only steps at the s of the start were made."""
        self._measured = {visit.s: _Measured() for visit in visits}
        self._static_mib: float | None = None
        """Of the process that needed most."""
        self._indicators = Windows()
        self._edges: dict[int, float] = {}
        """When memory was told, by the step; the newest few."""
        self._started_s = started_s
        self._news = False
        self.is_complete = False

    def learn_batch(self, rows: int | None) -> None:
        """The batch as it was seen, where nobody has said it."""
        if not self._is_said:
            self._batch_size = rows

    def watch_from_outside(self) -> None:
        """The ranks have said nothing: all that the job does alone counts, until they do."""
        self._is_outside = not self._is_training

    def clock(self, now_s: float, *, alone: bool) -> None:
        """Takes note that time has passed."""
        if alone and self._alone_since_s is not None and self.is_watching:
            self._spent_s += now_s - self._clock_s
        self._clock_s = now_s
        if not alone:
            self._alone_since_s = None
        elif self._alone_since_s is None:
            self._alone_since_s = now_s
        if self._spent_s >= self._budget_s and (self._is_outside or self._has_steps):
            self.is_complete = True
        if len(self._visits) > 1 and self._step >= self._visits[-1].start:
            self.is_complete = True

    @property
    def is_watching(self) -> bool:
        """What the job does counts, if it is alone."""
        return self._is_training or self._is_outside

    @property
    def _has_steps(self) -> bool:
        heard = self._step - (self._began_step or 0)
        return self._is_training and heard >= performance.WARM_UP_STEPS + performance.COUNTED_STEPS_MIN

    @property
    def has_first(self) -> bool:
        """Enough was seen for a first result."""
        return bool(self._base.step_times) and self._spent_s >= FIRST_PART * self._budget_s

    @property
    def _base(self) -> _Measured:
        return self._measured[self._ordered]

    # --- What is heard --------------------------------------------------------------------------------

    def note_step(self, *, step: int, count: int, elapsed_s: float, s: int, now_s: float) -> None:
        """The first rank's report: `count` steps up to `step` took `elapsed_s`, at s."""
        first = step - count
        self._began_step = first if self._began_step is None else self._began_step
        self._step = max(self._step, step)
        warm_step = self._began_step + performance.WARM_UP_STEPS
        if step >= warm_step and not (
            self._is_training or self.is_complete
        ):  # What was seen before was the job's loading.
            self._is_training, self._is_outside = True, False
            self._indicators, self._spent_s, self._clock_s = Windows(), 0.0, now_s
            self._news = False
        alone = self._alone_since_s is not None and self._alone_since_s <= now_s - elapsed_s
        visit, kept = self._visit_of(first, step), self._measured.get(s)
        if s != self._ordered or visit is None:
            self._steady_since_s = None
        if (
            visit is None
            or kept is None
            or first < max(warm_step, visit.start + performance.WARM_UP_STEPS)
            or not count
        ):
            return
        if s == self._ordered and self._steady_since_s is None:
            self._steady_since_s = now_s
        if alone and elapsed_s > 0 and not self.is_complete and len(kept.step_times) < REPORTS_MAX:
            kept.step_times.append(elapsed_s / count)
            kept.steps += count
            self._news = True

    def _visit_of(self, first: int, step: int) -> performance.Visit | None:
        """The visit in which all steps after `first` up to `step` lie."""
        return next((each for each in self._visits if each.start <= first and step <= each.until), None)

    def note_memory(
        self,
        *,
        first: int,
        step: int,
        s: int,
        memory_mib: float | None,
        static_mib: float | None,
        now_s: float,
    ) -> None:
        """A rank's steps after `first` up to `step` are over, all at s; its own peak, and what it has in use
        between steps."""
        began_s = self._edges.get(first, self._started_s)
        self._edges.setdefault(step, now_s)
        while len(self._edges) > EDGES_KEPT:
            del self._edges[next(iter(self._edges))]
        alone = self._alone_since_s is not None and self._alone_since_s <= began_s
        visit, kept = self._visit_of(first, step), self._measured.get(s)
        if visit is None or step == visit.until:
            self._steady_since_s = None
        if alone and visit is not None and kept is not None:
            kept.memory_mib = _larger(kept.memory_mib, memory_mib)
            if s == self._ordered:  # In main memory others leave pieces behind that it would not.
                self._static_mib = _larger(self._static_mib, static_mib)

    def note_sample(self, sample: Timed) -> None:
        """Indicators over some time."""
        alone = self._alone_since_s is not None and self._alone_since_s <= sample.since_s < sample.at_s
        steady = self._steady_since_s is not None and self._steady_since_s <= sample.since_s
        if alone and (steady or self._is_outside) and not self.is_complete:
            self._indicators.add(sample)
            self._news = True

    # --- What it showed -------------------------------------------------------------------------------

    def take_news(self) -> bool:
        """Whether there is more to tell than the last time."""
        news, self._news = self._news, False
        return news

    def profile(
        self,
        *,
        load_s: float | None,
        peak_mib: float | None,
        others_mib: float = 0.0,
    ) -> performance.Profile:
        """The profile of what was measured until now.

        Args:
            load_s: Launch to first step.
            peak_mib: The most that a worker had resident at any time, all its processes together.
            others_mib: What processes other than the worker's own add to it (data loaders).
        """
        summaries = self._indicators.summaries()
        base_s = median(self._base.step_times) if self._base.step_times else None
        peak_mib = _larger(_sum(self._base.memory_mib, others_mib), peak_mib)
        points = tuple(self._points(peak_mib, others_mib))
        return performance.Profile(
            points=points,
            duty_cycle=duty_cycle_of(summaries),
            load_s=load_s,
            steps=sum(measured.steps for measured in self._measured.values()),
            indicators=indicators_of(summaries) if summaries else None,
            memory_mib_peak=peak_mib,
            static_mib=_sum(self._static_mib, others_mib),
            step_s=base_s if not points else None,
            source="from outside" if self._is_outside else "in place",
        )

    def _points(self, peak_mib: float | None, others_mib: float) -> Iterable[performance.ProfilePoint]:
        """What was measured at each s, where the batch divides evenly. The highest peak ever is that of the s
        of the start: nothing else was used while the job loaded."""
        for s, kept in sorted(self._measured.items()):
            memory_mib = peak_mib if s == self._ordered else _sum(kept.memory_mib, others_mib)
            if not kept.step_times or memory_mib is None or self._batch_size is None:
                continue
            if s != self._ordered and self._batch_size % s:
                continue
            yield performance.ProfilePoint(
                sub_batch=-(-self._batch_size // s),
                accumulation_steps=s,
                step_s=median(kept.step_times),
                memory_mib=memory_mib,
            )


def _larger(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _sum(own_mib: float | None, others_mib: float) -> float | None:
    return None if own_mib is None else own_mib + others_mib


def duty_cycle_of(summaries: Mapping[Indicator, Summary]) -> float | None:
    """The share of time in which the devices are busy: of a GPU when anything runs on it (a time slice is the
    whole GPU's), of a CPU slot the share of its cores, which are divided among those who want them."""
    active = summaries.get(Indicator.GRACT)
    on_gpu = active is not None and active.source in ("gpm", "dcgm", "exporter", "nvml")
    busy = active if on_gpu else summaries.get(Indicator.SMACT)
    return None if busy is None or math.isnan(busy.mean) else busy.mean


def indicators_of(summaries: Mapping[Indicator, Summary]) -> performance.Indicators:
    """Table 2 as a profile keeps it: each with its source, missing ones empty."""
    named = {each.value: summary for each, summary in summaries.items()}
    return performance.Indicators(
        **{
            name: _stats(named[name])
            for name in performance.INDICATOR_NAMES
            if name in named and named[name].count
        }
    )


def _stats(summary: Summary) -> performance.IndicatorStats:
    return performance.IndicatorStats(
        mean=summary.mean,
        variance=summary.variance,
        source=summary.source,
        count=summary.count,
        period_s=summary.period_s,
    )
