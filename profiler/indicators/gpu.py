"""The source for a job on CUDA devices: the best counters its GPUs have, and its host processors.

Rule: a supervisor never waits for a driver. The counters come from a process of its own, which samples on its
own clock; here they are only collected. All of them count a whole GPU, so the values are the job's only while
it is alone there. Over several devices a value is the mean of all of them, or missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from cotenant.profiler.indicators.cpu import CpuSource
from cotenant.profiler.indicators.device_process import (
    START_S_MAX,
    DeviceAnswer,
    DeviceProcess,
    NoIndicators,
    words_of,
)
from cotenant.profiler.indicators.gpm import RATES, SHARES
from cotenant.profiler.indicators.sources import (
    Indicator,
    Reading,
    Sample,
    SourceName,
    Timed,
    Wanted,
    Windows,
    missing,
)

OF_THE_HOST: Final = (Indicator.CPU, Indicator.NETTX, Indicator.NETRX)
OF_THE_DEVICES: Final = (*SHARES, *RATES)
TOO_SOON: Final = "two samples must be more than 100 ms apart"


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
        until it has tried the sources, for which `sample` waits."""
        self._host = host
        self._start_s_max = start_s_max
        self._child = DeviceProcess(list(command) or words_of(wanted or Wanted(), uuids), start_s_max)
        self.period_s = host.period_s
        self.name: SourceName = "nvml"
        self.why = ""
        """Why this source; empty until it has been found out."""
        self.problem = ""
        """Why there are no values of the devices any more."""

    def samples(self) -> tuple[Timed, ...]:
        """All since the last question; what the child has not said by now comes the next time."""
        host = tuple(
            Timed(
                since_s=each.since_s,
                at_s=each.at_s,
                period_s=each.period_s,
                values={name: each.values[name] for name in OF_THE_HOST},
            )
            for each in self._host.samples()
        )
        return (*host, *self._collect(0.0))

    def sample(self) -> Sample:
        """The mean since the last question. Waits for the child: not for a loop that has other work."""
        host = self._host.sample()
        windows = Windows()
        for each in self._collect(self._start_s_max):
            windows.add(each)
        known = {
            name: Reading(value=summary.mean, source=summary.source)
            if summary.count
            else missing(summary.source, summary.reason)
            for name, summary in windows.summaries().items()
        }
        for name in OF_THE_DEVICES:
            known.setdefault(name, missing(self.name, self.problem or TOO_SOON))
        return {**known, **{name: host[name] for name in OF_THE_HOST}}

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
        return [
            Timed(since_s=since_s, at_s=at_s, period_s=period_s, values=_average_sample(answer, devices))
            for since_s, at_s, period_s, devices in answer.samples
            if at_s > since_s and period_s > 0.0
        ]

    def close(self) -> None:
        self.problem = self.problem or "the source is closed"
        self._child.close()


def _average_sample(answer: DeviceAnswer, devices: Sequence[dict[str, float]]) -> Sample:
    return {
        name: _mean([answer.reading(number, known, name) for number, known in enumerate(devices)])
        for name in OF_THE_DEVICES
    }


def _mean(readings: list[Reading]) -> Reading:
    """Missing where any of them is: a mean over some of the devices is not the job's."""
    lacking = next((reading for reading in readings if reading.missing), None)
    if lacking is not None or not readings:
        return lacking or missing("nvml", "no devices")
    value = math.fsum(reading.value for reading in readings) / len(readings)
    return Reading(value=value, source=readings[0].source, gauge=readings[0].gauge)
