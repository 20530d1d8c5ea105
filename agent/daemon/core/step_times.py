"""Step times of one job, from what its supervisor reports: windows of them, and their p99. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final, NamedTuple

from cotenant.agent.ipc.records import StepClock

P99_STEPS_MIN: Final = 100
"""So many steps say what their p99 is."""
MINUTE_S: Final = 60.0
REPORTS_MAX: Final = 600
"""A minute of them."""


class StepTimes(NamedTuple):
    """Some steps in a row; seconds, each the median of what was reported."""

    whole_s: float
    step_s: float
    """Without the job's own waits for co-tenants."""


class StepWindow:
    """Gathers what is reported of steps until there are enough."""

    def __init__(self, clock: StepClock) -> None:
        self.begin(clock)

    def begin(self, clock: StepClock) -> None:
        self._mark = self._last = clock
        self._reports: list[StepTimes] = []

    @property
    def began(self) -> StepClock:
        return self._mark

    def read(self, clock: StepClock, steps_min: int, s_min: float) -> tuple[int, StepTimes | None]:
        """Takes in where the clock stands. Returns how many steps are new, and the window once it is long
        enough; then the next one begins."""
        steps, elapsed_s = clock.steps - self._last.steps, clock.elapsed_s - self._last.elapsed_s
        if steps < 0 or elapsed_s < 0.0:  # It began anew.
            self.begin(clock)
        if steps <= 0 or elapsed_s <= 0.0:
            return 0, None
        waited_s = min(elapsed_s, max(0.0, clock.waited_s - self._last.waited_s))
        self._reports.append(StepTimes(elapsed_s / steps, (elapsed_s - waited_s) / steps))
        self._last = clock
        all_steps, all_s = clock.steps - self._mark.steps, clock.elapsed_s - self._mark.elapsed_s
        if (all_steps < steps_min and all_s < 10 * s_min) or all_s < s_min:
            return steps, None
        window = StepTimes(
            median(each.whole_s for each in self._reports), median(each.step_s for each in self._reports)
        )
        self.begin(clock)
        return steps, window


class LongSteps:
    """The longest step of each report, for the p99 of all of them."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, int, float]] = deque(maxlen=REPORTS_MAX)

    def add(self, now_s: float, steps: int, longest_s: float) -> None:
        if steps > 0:
            self._reports.append((now_s, steps, longest_s))

    def forget_before(self, at_s: float) -> None:
        while self._reports and self._reports[0][0] <= at_s:
            self._reports.popleft()

    def is_enough(self, now_s: float) -> bool:
        """They say what the steps of a minute are like: enough were reported, or for long enough."""
        began_s = self._reports[0][0] if self._reports else now_s
        return self.steps >= P99_STEPS_MIN or now_s - began_s >= MINUTE_S / 2.0

    @property
    def steps(self) -> int:
        return sum(steps for _, steps, _ in self._reports)

    @property
    def p99_s(self) -> float | None:
        """None: fewer than three were reported, or none with its longest step. Two long steps of a few are no
        p99."""
        over = max(2, self.steps // 100)
        longest = sorted((each for _, _, each in self._reports), reverse=True)
        return longest[over] or None if over < len(longest) else None
