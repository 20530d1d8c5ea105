"""Whether the processes of an attempt do anything, from what they use. Pure.

Rule: it only counts looks at which they worked; how long a silence is, and what it means beside the devices'
indicators, the agent judges (`daemon/core/idleness.py`). What waits uses next to nothing: a notebook or a
torch program about 0.5 % of a core, and few bytes a second. A loader that is slow still reads.
"""

from __future__ import annotations

from typing import Final

from cotenant.agent.supervisor.core.edge import Sampled

LOOK_S: Final = 10.0
"""Processor time is counted in steps of 10 ms, and reads come in bursts."""
CORE_SHARE_MIN: Final = 0.01
"""Of one core, by all processes together: with less they wait."""
READ_BYTES_MIN: Final = 16 * 1024
"""A second, through any file, from a cache as well."""


class ProcessActivity:
    """The count of looks at which the processes of one attempt worked."""

    def __init__(self) -> None:
        self._looked: tuple[float, Sampled] | None = None
        self._inputs = 0
        self.count: int | None = None
        """None: there was no look yet."""

    def note_sample(self, sample: Sampled, now_s: float) -> None:
        """Takes in a sample; anything typed counts at once."""
        if sample.input_bytes != self._inputs:
            self._inputs = sample.input_bytes
            self.count = (self.count or 0) + 1
        if self._looked is None:
            self._looked = now_s, sample
            return
        looked_s, before = self._looked
        passed_s = now_s - looked_s
        if passed_s < LOOK_S:
            return
        self._looked = now_s, sample
        has_worked = (
            sample.cpu_s - before.cpu_s >= CORE_SHARE_MIN * passed_s
            or sample.read_bytes - before.read_bytes >= READ_BYTES_MIN * passed_s
        )
        self.count = (self.count or 0) + has_worked
