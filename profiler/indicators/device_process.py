"""The asking side of `device_child.py`: which source the indicators of a host's GPUs come from, and why; then
one question, one line, and no wait beyond the limit.

Rule: the best source that works, tried in one order: GPM, DCGM, a dcgm-exporter, plain NVML. A source works
if it has shown a value, not if it could be opened. A driver may hang in the attempt, so a process of its own
makes it, and the caller waits for a bounded time.

Rule: a `DeviceProcess` gives up a process that is silent for too long, ends, or answers nonsense, notes the
reason, and never asks it again. It does not wait for one that hangs in the driver.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Final, get_args

import msgspec

from cotenant.profiler.driver.probe_client import DRIVER_S_MAX, Child, NoProbeAnswer
from cotenant.profiler.indicators import sources

# --- Which source ----------------------------------------------------------------------------------


ORDER: Final[tuple[sources.Wish, ...]] = get_args(sources.Wish)[1:]
EXPLAIN_S_MAX: Final = 30.0
MIG_HAS_NONE: Final = "unknown: a MIG instance has no counters of its own"
CHILD: Final = "cotenant.profiler.indicators.device_child"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Which source was chosen, if one works, and why it: what was passed over, and for which reason."""

    chosen: sources.SourceName | None = None
    why: str


def words_of(wanted: sources.Wanted, uuids: Sequence[str]) -> list[str]:
    """The child's command line."""
    flags = (f"--{name.replace('_', '-')}={value}" for name, value in msgspec.structs.asdict(wanted).items())
    return [sys.executable, "-m", CHILD, *flags, *uuids]


# --- The process -----------------------------------------------------------------------------------


START_S_MAX: Final = DRIVER_S_MAX
"""For the first answer: the driver is loaded, sources are tried."""
ANSWER_S_MAX: Final = 5.0
END_S: Final = 0.1
PROBLEM_CHARS: Final = 1200
"""Each of the sources may have a reason."""


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `device_child`: what it has sampled since the last one."""

    problem: str = ""
    """Why there will be no answer any more; the rest is then empty."""
    source: sources.SourceName = "nvml"
    why: str = ""
    lacks: str = ""
    offers: frozenset[sources.Indicator] = frozenset()
    gauges: frozenset[sources.Indicator] = frozenset()
    samples: tuple[sources.Taken, ...] = ()
    problems: tuple[str, ...] = ()
    lost: int = 0
    """Samples that nobody asked for in time."""

    def samples_of(self, numbers: Sequence[int]) -> list[sources.Timed]:
        """The samples of the devices with these numbers: the mean of each indicator over them."""
        return [
            sources.Timed(
                since_s=each.since_s,
                at_s=each.at_s,
                period_s=each.period_s,
                values=self._means(numbers, each.devices),
            )
            for each in self.samples
            if each.at_s > each.since_s and each.period_s > 0.0 and max(numbers) < len(each.devices)
        ]

    def _means(self, numbers: Sequence[int], devices: Sequence[sources.IndicatorValues]) -> sources.Sample:
        readings = {
            name: [self._reading(number, devices[number], name) for number in numbers]
            for name in sources.OF_DEVICES
        }
        # Missing where any of them is: a mean over some of the devices is not the job's.
        return {
            name: next((each for each in found if each.missing), None)
            or msgspec.structs.replace(found[0], value=math.fsum(r.value for r in found) / len(found))
            for name, found in readings.items()
        }

    def _reading(
        self, device: int, known: sources.IndicatorValues, name: sources.Indicator
    ) -> sources.Reading:
        """The value of one indicator of one device in one sample."""
        if name in known:
            return sources.Reading(value=known[name], source=self.source, gauge=name in self.gauges)
        if name not in self.offers:
            return sources.missing(self.source, self.lacks)
        return sources.missing(self.source, self.problems[device] or sources.NOTHING_NEW)


class NoIndicators(Exception):
    """Why there will be none."""

    def __init__(self, why: str, *, was_said: bool = False) -> None:
        super().__init__(why)
        self.was_said = was_said
        """The process said so itself; else it hung, died or made no sense, and another source may do
        better."""


class DeviceProcess:
    """A child process that asks the driver, and what is on its way from it."""

    def __init__(self, words: Sequence[str], start_s_max: float = START_S_MAX) -> None:
        self._problem = ""
        self._is_asked = False
        self._since_s, self._limit_s = time.monotonic(), start_s_max
        """From when on an answer is waited for, and how long at most."""
        self.has_answered = False
        self.child: Child | None = None
        """None: it is gone."""
        try:
            self.child = Child(words, "the driver", keeps_complaints=False)
        except NoProbeAnswer as why:
            self._problem = str(why)

    def ask(self, wait_s: float) -> DeviceAnswer | None:
        """What happened since the last answer; None: not yet, ask again later.

        Raises:
            NoIndicators: and there never will be one.
        """
        if self.child is None:
            raise NoIndicators(self._problem)
        if not self._is_asked:
            self._is_asked = True
            if self.has_answered:
                self._since_s, self._limit_s = time.monotonic(), ANSWER_S_MAX
            self.child.ask()
        try:
            answer = self.child.answer(DeviceAnswer, wait_s)
        except NoProbeAnswer as why:
            self.close(str(why))
            raise NoIndicators(self._problem) from None
        if answer is None:
            if time.monotonic() - self._since_s >= self._limit_s:
                self.close(f"the driver did not answer within {self._limit_s:g} s")
                raise NoIndicators(self._problem)
            return None
        if answer.problem:
            self.close(answer.problem[:PROBLEM_CHARS])
            raise NoIndicators(self._problem, was_said=True)
        self._is_asked, self.has_answered = False, True
        return answer

    def close(self, why: str = "the source is closed") -> None:
        """Ends the process; one that hangs in the driver is not waited for."""
        self._problem = self._problem or why
        if self.child is not None:
            self.child.close(END_S)
        self.child = None


def explain(
    uuids: Sequence[str], wanted: sources.Wanted | None = None, timeout_s: float = EXPLAIN_S_MAX
) -> Explanation:
    """Try the sources for these GPUs and say how it went."""
    if not uuids:
        return Explanation(why="no CUDA device: a CPU slot's indicators come from /proc and psutil")
    process = DeviceProcess(words_of(wanted or sources.Wanted(), uuids), timeout_s)
    try:
        answer = process.ask(timeout_s)
    except NoIndicators as why:
        return Explanation(why=str(why))
    finally:
        process.close()
    assert answer is not None, "else the limit is over, which is said"
    return Explanation(chosen=answer.source, why=answer.why)
