"""The profile of a job in place: what it needs at one s and another, measured while it trains. Pure.

Rule: the job is never run for the profile's sake, only watched. For some steps at a time all ranks use
another s (a *window*, agreed on beforehand, over by itself, recorded in the job's checkpoints); a step
counts only if all of it lay in one window, behind the first ones after the change, while nobody shared the
job's devices. What was not measured is absent: nothing here is a default or a guess.

Source: Castor section 7, which profiles each job for T_prof before it is admitted to the queue. Departs from
it in that the job's own first attempt is the run (nobody's script is started twice), and in that T_prof
counts only time alone, so that a co-tenant interrupts the profile and does not spoil it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Final

import msgspec

from cotenant.controller.performance import INDICATOR_NAMES, Indicators, IndicatorStats, Profile, ProfilePoint
from cotenant.profiler.indicators.sources import Indicator, Summary, Timed, Windows

SAMPLE_PERIOD_S: Final = 0.5
"""How often a source is asked for its samples inside a window; some take several in that time."""
CLOSED_S_MAX: Final = 0.05
"""A sample that is taken because a window is over comes within this, or says something else."""
CHOICES_MAX: Final = 5
"""Different s at most, the ordered one included: 1, 2, 4, 8, 16."""
ROUNDS: Final = 2
"""How often each s is visited if time allows: apart in time, so that a slow minute does not hit one s
alone."""
WARM_UP_STEPS: Final = 2
"""At a window's beginning, not counted: allocators and caches settle."""
COUNTED_STEPS_MIN: Final = 3
REPORTS_MAX: Final = 10_000
"""Kept per s; a window of any length has a bounded number."""
FAILURES_MAX: Final = 3
"""Windows in a row on which the ranks could not agree, before the profile is ended without them."""
ASKED_S_MAX: Final = 60.0
"""After this, a wish that nobody answered counts as refused."""
BLIND_AFTER_S: Final = 60.0
"""A job that has not said a word so long after its start is watched from outside, until it does."""
EDGES_KEPT: Final = 4


def choices(ordered: int, batch_size: int | None) -> tuple[int, ...]:
    """The s to visit: the ordered one, then its doubles as long as the batch divides evenly.

    Never fewer than ordered: that could need more memory than was planned for the job.
    """
    found = [ordered]
    while batch_size and len(found) < CHOICES_MAX and batch_size % (found[-1] * 2) == 0:
        found.append(found[-1] * 2)
    return tuple(found)


class WindowWish(msgspec.Struct, frozen=True, kw_only=True):
    """A window to agree on: `s` for `count` steps."""

    s: int
    count: int


class AccumulationWindow(msgspec.Struct, frozen=True, kw_only=True):
    """After `start` completed steps s is used, after `until` no longer."""

    start: int
    until: int
    s: int


class _Measured(msgspec.Struct, kw_only=True):
    """What one s was seen to need."""

    step_times: list[float] = []
    """Seconds per step, one per report."""
    steps: int = 0
    memory_mib: float | None = None
    """Of the process that needed most."""


class InPlace:
    """The profile of one attempt. The caller passes on what it hears and carries out what is wished for."""

    def __init__(self, *, budget_s: float, ordered: int, batch_size: int | None, started_s: float) -> None:
        """`budget_s` is T_prof, in seconds alone from the first step on."""
        self._budget_s = budget_s
        self._ordered = ordered
        self._batch_size, self._is_said = batch_size, batch_size is not None
        self._choices = choices(ordered, batch_size)
        self._visits: list[int] = []
        self._spent_s = 0.0
        self._clock_s = started_s
        self._alone_since_s: float | None = started_s
        self._window: AccumulationWindow | None = None
        self._opened_s = math.inf
        self._closed: tuple[float, float, int] | None = None
        """Of a window that is just over: when it opened and closed, and its s; a last sample may be on its
        way."""
        self._asked = False
        self._asked_s = started_s
        self._step = 0
        self._failures = 0
        self._measured: dict[int, _Measured] = {}
        self._indicators = Windows()
        self._edges: dict[int, float] = {}
        """When the windows began, by their first step; the newest few."""
        self._started_s = started_s
        self._news = False
        self.refused = False
        """The job did not accumulate when it was told to."""
        self.is_complete = False
        self.is_outside = False
        """The job does not use the library: there are no windows. All that it does alone from its first step
        on counts; without steps, from when it is watched."""

    def learn_batch(self, rows: int | None) -> None:
        """The batch as it was seen, where nobody has said it: there may be smaller sub-batches to visit."""
        if not self._is_said and rows not in (None, self._batch_size):
            self._batch_size, self._choices = rows, choices(self._ordered, rows)

    def watch_from_outside(self) -> None:
        """The ranks have said nothing."""
        self.is_outside = True

    def watch_from_inside(self) -> None:
        """The ranks speak after all: what we have seen so far was the job's loading."""
        if self.is_outside and not self.is_complete:
            self.is_outside = False
            self._indicators, self._spent_s = Windows(), 0.0

    def watch_steps(self) -> None:
        """Profiles from outside a job that has made its first step without a hello: the zero-code hook counts
        its steps."""
        if not self.is_complete:
            self.is_outside = True
            self._indicators, self._spent_s = Windows(), 0.0

    # --- Time ---------------------------------------------------------------------------------------

    def clock(self, now_s: float, *, alone: bool, is_training: bool) -> None:
        """Takes note that time has passed; `is_training` from the first step on."""
        if alone and is_training and self._alone_since_s is not None and not self.is_complete:
            self._spent_s += now_s - self._clock_s
        self._clock_s = now_s
        if not alone:
            self._alone_since_s = None
        elif self._alone_since_s is None:
            self._alone_since_s = now_s
        if self._asked and now_s >= self._asked_s + ASKED_S_MAX:
            self.not_agreed()
        if self._spent_s >= self._budget_s and self._window is None and not self._asked:
            self.is_complete = True

    @property
    def left_s(self) -> float:
        """The seconds that are left of T_prof."""
        return max(0.0, self._budget_s - self._spent_s)

    @property
    def window(self) -> AccumulationWindow | None:
        """Agreed and not over."""
        return self._window

    @property
    def has_first(self) -> bool:
        """A window at the ordered s is over on all ranks, since they have promised another."""
        return len(self._visits) > 1

    @property
    def is_open(self) -> bool:
        """A window has begun."""
        return self._opened_s < math.inf

    # --- Windows ------------------------------------------------------------------------------------

    def wish(self, step_s: float | None, *, accumulates: bool) -> WindowWish | None:
        """The next window, if it is time for one; the caller asks the ranks, then says how it went."""
        if self._window is not None or self._asked or self.is_complete or self._alone_since_s is None:
            return None
        if step_s is None or self.is_outside:
            return None
        least = WARM_UP_STEPS + COUNTED_STEPS_MIN
        for s in self._open_choices(accumulates):
            expected_s = max(self._expected_step_s(s, step_s), 1e-6)
            if self._visits and least * expected_s > self.left_s:
                continue  # It would not be over in time; one with larger sub-batches may.
            self._asked, self._asked_s = True, self._clock_s
            counted = math.ceil(self._window_s(accumulates) / expected_s)
            return WindowWish(s=s, count=max(least, WARM_UP_STEPS + counted))
        self.is_complete = True
        return None

    def note_agreement(self, window: AccumulationWindow) -> None:
        """All ranks have promised it."""
        self._asked, self._failures = False, 0
        self._window, self._opened_s = window, math.inf
        self._visits.append(window.s)

    def not_agreed(self) -> None:
        """Notes that the ranks could not agree; after a few refusals the profile ends with what it has."""
        self._asked = False
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self.is_complete = True

    def _open_choices(self, accumulates: bool) -> list[int]:
        """What is still to be visited, in order."""
        can = self._choices if accumulates and not self.refused else self._choices[:1]
        open_ = [s for s in can if self._visits.count(s) < ROUNDS]
        return sorted(open_, key=lambda s: (self._visits.count(s), s))

    def _window_s(self, accumulates: bool) -> float:
        """T_prof shared out evenly."""
        can = len(self._choices) if accumulates and not self.refused else 1
        return self._budget_s / (can * ROUNDS)

    def _expected_step_s(self, s: int, step_s: float) -> float:
        """The step time that is expected at s, from Castor's eq. 3, which is linear in s, and never steeper
        than proportional."""
        known = {each: median(m.step_times) for each, m in self._measured.items() if m.step_times}
        if s in known:
            return known[s]
        below = sorted(each for each in known if each < s)
        if not below:
            return step_s
        if len(below) == 1:
            return known[below[0]] * s / below[0]
        one, two = below[-2:]
        return known[two] + max(0.0, known[two] - known[one]) / (two - one) * (s - two)

    # --- What is heard --------------------------------------------------------------------------------

    def note_step(self, *, step: int, count: int, elapsed_s: float, s: int, now_s: float) -> None:
        """The first rank's report: `count` steps up to `step` took `elapsed_s`, at s."""
        self._step = max(self._step, step)
        window = self._window
        if window is None:
            if self.is_outside and step - count >= WARM_UP_STEPS and s == self._ordered:
                self._keep(s, count, elapsed_s, now_s)
            return
        if step > window.start and s != window.s and count > 0 and step <= window.until:
            self.refused = self.refused or s < window.s
        first = step - count
        inside = window.start + WARM_UP_STEPS <= first and step <= window.until
        if inside and s == window.s:
            self._keep(s, count, elapsed_s, now_s)
        if step > window.until:  # Its end was missed: a datagram was lost.
            self._close()

    def _keep(self, s: int, count: int, elapsed_s: float, now_s: float) -> None:
        """A report, if nobody else was there meanwhile."""
        alone = self._alone_since_s is not None and self._alone_since_s <= now_s - elapsed_s
        if not (alone and count > 0 and elapsed_s > 0) or self.is_complete:
            return
        kept = self._measured.setdefault(s, _Measured())
        if len(kept.step_times) < REPORTS_MAX:
            kept.step_times.append(elapsed_s / count)
            kept.steps += count
            self._news = True

    def window_over(
        self, *, first: int, step: int, s: int, memory_mib: float | None, is_first_rank: bool, now_s: float
    ) -> None:
        """A rank's steps after `first` up to `step` are over, all at s; its own peak in them."""
        began_s = self._edges.get(first, self._started_s)
        alone = self._alone_since_s is not None and self._alone_since_s <= began_s
        self._edges.setdefault(step, now_s)
        while len(self._edges) > EDGES_KEPT:
            del self._edges[next(iter(self._edges))]
        if memory_mib is not None and alone and s in self._choices:
            kept = self._measured.setdefault(s, _Measured())
            kept.memory_mib = max(memory_mib, kept.memory_mib or 0.0)
        window = self._window
        if window is None or not is_first_rank:
            return
        self._step = max(self._step, step)
        if step == window.start:
            self._opened_s = now_s
        elif step >= window.until:
            self._closed = (self._opened_s, now_s, window.s)
            self._close()

    def note_sample(self, sample: Timed) -> None:
        """Indicators over some time. They count where all of it lies in one window at the ordered s."""
        since_s, at_s = sample.since_s, sample.at_s
        alone = self._alone_since_s is not None and self._alone_since_s <= since_s < at_s
        if alone and (self.is_outside or self._is_inside(since_s, at_s)) and not self.is_complete:
            self._indicators.add(sample)
            self._news = True

    def _is_inside(self, since_s: float, at_s: float) -> bool:
        if self._closed is not None:
            opened_s, closed_s, s = self._closed
            if opened_s <= since_s and at_s <= closed_s + CLOSED_S_MAX and s == self._ordered:
                return True
        return self._window is not None and self._window.s == self._ordered and self._opened_s <= since_s

    def _close(self) -> None:
        self._window, self._opened_s = None, math.inf

    # --- What it showed -------------------------------------------------------------------------------

    def take_news(self) -> bool:
        """Whether there is more to tell than the last time."""
        news, self._news = self._news, False
        return news

    def profile(self, *, load_s: float | None, peak_mib: float | None, others_mib: float = 0.0) -> Profile:
        """The profile of what was measured until now.

        Args:
            load_s: Launch to first step.
            peak_mib: The most that a worker had resident at any time, all its processes together.
            others_mib: What processes other than the worker's own add to it (data loaders).
        """
        summaries = self._indicators.summaries()
        points = tuple(
            point for s in self._choices if (point := self._point(s, peak_mib, others_mib)) is not None
        )
        return Profile(
            points=points,
            duty_cycle=duty_cycle_of(summaries),
            load_s=load_s,
            steps=sum(measured.steps for measured in self._measured.values()),
            accumulates=False if self.refused else len(points) > 1 or None,
            indicators=indicators_of(summaries) if summaries else None,
            memory_mib_peak=peak_mib if peak_mib is not None else self._base_mib(others_mib),
            step_s=self._step_s() if not points else None,
            source="from outside" if self.is_outside and not self._measured else "in place",
        )

    def _step_s(self) -> float | None:
        base = self._measured.get(self._ordered)
        return median(base.step_times) if base is not None and base.step_times else None

    def _base_mib(self, others_mib: float) -> float | None:
        base = self._measured.get(self._ordered)
        return None if base is None or base.memory_mib is None else base.memory_mib + others_mib

    def _point(self, s: int, peak_mib: float | None, others_mib: float) -> ProfilePoint | None:
        """The profile's point at s, with a step time and a memory, or not at all. All that ran before the
        first window was at the ordered s, so the highest peak ever is that one's."""
        kept = self._measured.get(s)
        if kept is None or not kept.step_times or self._batch_size is None:
            return None
        own_mib = None if kept.memory_mib is None else kept.memory_mib + others_mib
        memory_mib = max(filter(None, (own_mib, peak_mib)), default=None) if s == self._ordered else own_mib
        if memory_mib is None:
            return None
        return ProfilePoint(
            sub_batch=-(-self._batch_size // s),
            accumulation_steps=s,
            step_s=median(kept.step_times),
            memory_mib=memory_mib,
        )


def duty_cycle_of(summaries: Mapping[Indicator, Summary]) -> float | None:
    """The share of time in which the devices are busy: of a GPU when anything runs on it (a time slice is the
    whole GPU's), of a CPU slot the share of its cores, which are divided among those who want them."""
    active = summaries.get(Indicator.GRACT)
    on_gpu = active is not None and active.source in ("gpm", "dcgm", "exporter", "nvml")
    busy = active if on_gpu else summaries.get(Indicator.SMACT)
    return None if busy is None or math.isnan(busy.mean) else busy.mean


def indicators_of(summaries: Mapping[Indicator, Summary]) -> Indicators:
    """Table 2 as a profile keeps it: each with its source, missing ones empty."""
    named = {each.value: summary for each, summary in summaries.items()}
    return Indicators(
        **{name: _stats(named[name]) for name in INDICATOR_NAMES if name in named and named[name].count}
    )


def _stats(summary: Summary) -> IndicatorStats:
    return IndicatorStats(
        mean=summary.mean,
        variance=summary.variance,
        source=summary.source,
        count=summary.count,
        period_s=summary.period_s,
    )
