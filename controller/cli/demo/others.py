"""How busy other programs keep the demo's cores, so that its times can be judged.

Rule: it is measured in moments in which no job of the demo runs: before the first, between the acts and after
the last. In between nobody can tell whose the time of a core is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

LOOK_S: Final = 1.0
BUSY_RATIO: Final = 0.15
"""From this share of the cores on, the machine counts as busy."""


class OthersLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Field for field `others` in `report.json`."""

    cores: int
    busy_cores: Mapping[str, float]
    """By moment (`before`, `between the acts`, `after`): cores that other programs kept busy."""

    @property
    def is_busy(self) -> bool:
        return any(busy > BUSY_RATIO * self.cores for busy in self.busy_cores.values())

    def in_words(self) -> str:
        """One sentence beside the figures."""
        moments = ", ".join(f"{busy:.1f} {moment}" for moment, busy in self.busy_cores.items())
        verdict = (
            "other programs took time from the jobs, so that these figures are worse than on a quiet machine"
            if self.is_busy
            else "a quiet machine"
        )
        return f"other programs kept so many of {self.cores} cores busy: {moments}: {verdict}"


class OthersWatch:
    """Looks at the cores when it is told that no job of the demo runs."""

    def __init__(self, busy_ratios: Callable[[float], list[float]] | None = None) -> None:
        """`busy_ratios`: of each core over so many seconds; else from the kernel."""
        self._busy_ratios = busy_ratios or _busy_ratios
        self._found: dict[str, float] = {}
        self._cores = 0

    def look(self, moment: str) -> None:
        ratios = self._busy_ratios(LOOK_S)
        self._cores = len(ratios)
        self._found[moment] = round(sum(ratios), 2)

    def seen(self) -> OthersLoad:
        """What was found until now."""
        return OthersLoad(cores=self._cores, busy_cores=dict(self._found))


def _busy_ratios(over_s: float) -> list[float]:
    """Of the cores that this process may use."""
    import psutil

    percents = psutil.cpu_percent(interval=over_s, percpu=True)
    return [percents[core] / 100.0 for core in sorted(os.sched_getaffinity(0)) if core < len(percents)]
