"""Whether a job hangs at its start: no first step within the deadline. Pure.

Rule: judged once, at the deadline. Without the library there is no first step to hear of; then processor time
used, or output, in the second half of the time counts as life.
"""

from __future__ import annotations

from math import inf
from typing import Final

from cotenant.agent.supervisor.core.edge import Sampled

ALIVE_DUTY: Final = 0.05
"""A job without the library counts as started if it has used this much of a core lately."""


class StartLimit:
    def __init__(self, deadline_s: float, now_s: float) -> None:
        self._allowed_s = deadline_s
        self._half_way: Sampled | None = None
        self._sample = Sampled()
        self._is_judged = False
        self.started_s = now_s

    def sampled(self, sample: Sampled, now_s: float) -> None:
        self._sample = sample
        if self._half_way is None and now_s >= self.started_s + self._allowed_s / 2:
            self._half_way = sample

    def next_alarm_s(self, *, has_stepped: bool) -> float:
        return inf if self._is_judged or has_stepped else self.started_s + self._allowed_s

    def hangs(self, now_s: float, *, has_stepped: bool, has_said_hello: bool) -> bool:
        if now_s < self.next_alarm_s(has_stepped=has_stepped):
            return False
        self._is_judged = True
        half = self._half_way
        if half is None or has_said_hello:
            return True
        used_s = self._sample.cpu_s - half.cpu_s
        is_alive = used_s >= ALIVE_DUTY * self._allowed_s / 2 or self._sample.output_bytes > half.output_bytes
        return not is_alive
