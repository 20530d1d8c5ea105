"""The source for a job on CUDA devices: the best counters its GPUs have, and its host processors.

Rule: a supervisor never waits for a driver. The counters come from a process of its own, which samples on its
own clock; here they are only collected. All of them count a whole GPU, so the values are the job's only while
it is alone there. Over several devices a value is the mean of all of them, or missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cotenant.profiler.indicators.cpu import CpuSource
from cotenant.profiler.indicators.device_process import START_S_MAX, DeviceProcess, NoIndicators, words_of
from cotenant.profiler.indicators.sources import OF_THE_HOST, SourceName, Timed, Wanted


class GpuSource:
    """Castor's indicators for a job on CUDA devices, over the time since the sample before."""

    def __init__(
        self,
        uuids: Sequence[str],
        host: CpuSource,
        command: Sequence[str] = (),
        wanted: Wanted | None = None,
        start_s_max: float = START_S_MAX,
    ) -> None:
        """`command` answers like `profiler.indicators.device_child`; by default it is that. `start_s_max`:
        until it has tried the sources."""
        self._host = host
        self._numbers = range(len(uuids))
        self._child = DeviceProcess(list(command) or words_of(wanted or Wanted(), uuids), start_s_max)
        self.period_s = host.period_s
        self.name: SourceName = "nvml"
        self.why = ""
        """Why this source; empty until it has been found out."""
        self.problem = ""
        """Why there are no values of the devices any more."""

    def samples(self, wait_s: float = 0.0) -> tuple[Timed, ...]:
        """All since the last question; what the child has not said within `wait_s` comes the next time."""
        host = tuple(
            msgspec.structs.replace(each, values={name: each.values[name] for name in OF_THE_HOST})
            for each in self._host.samples()
        )
        return (*host, *self._collect(wait_s))

    def _collect(self, wait_s: float) -> list[Timed]:
        if self.problem:
            return []
        try:
            answer = self._child.ask(wait_s)
        except NoIndicators as problem:
            self.problem = str(problem)
            return []
        if answer is None:
            return []
        self.name, self.why = answer.source, answer.why
        return answer.samples_of(self._numbers)

    def close(self) -> None:
        self.problem = self.problem or "the source is closed"
        self._child.close()
