"""Indicators of NVIDIA GPUs from NVML's GPM counters (Hopper and later): `python -m cotenant.profiler.gpm
UUID...`.

Rule: a process of its own. A driver that hangs takes whoever asks it with it, and that must not be a
supervisor. Each line on standard input asks for what happened since the line before; each answer is one
line of JSON.

GPM compares two samples, which must be more than 100 ms apart; metrics are addressed by number, because names
differ between versions. Percentages become shares, MiB per second become bytes per second. On Hopper and
later DCGM's profiling fields are these same values.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from cotenant.profiler.sources import Indicator

MIB: Final = 1024 * 1024
APART_S_MIN: Final = 0.1
SHARES: Final[dict[Indicator, int]] = {
    Indicator.GRACT: 1,
    Indicator.SMACT: 2,
    Indicator.SMOCC: 3,
    Indicator.INTA: 4,
    Indicator.TENSO: 5,
    Indicator.DRAMA: 10,
    Indicator.FP64A: 11,
    Indicator.FP32A: 12,
    Indicator.FP16A: 13,
}
"""GPM's number; a percentage."""
RATES: Final[dict[Indicator, int]] = {
    Indicator.PCITX: 20,
    Indicator.PCIRX: 21,
    Indicator.NVLRX: 60,
    Indicator.NVLTX: 61,
}
"""GPM's number; MiB per second. For NVLink reading comes first."""
TOO_SOON: Final = "two GPM samples must be more than 100 ms apart"

Values = dict[Indicator, float]
"""NaN where the driver has no value."""


class Unsupported(Exception):
    """These devices have no GPM, or may not be asked; the text says why."""


class Gpm:
    """The counters of some devices of this host, and what they were the last time."""

    def __init__(
        self, pynvml: ModuleType, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises Unsupported."""
        self._nvml: Any = pynvml
        self._clock = clock
        try:
            self._nvml.nvmlInit()
            self._handles = [self._nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
            for uuid, handle in zip(uuids, self._handles, strict=True):
                if not self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                    raise Unsupported(f"{uuid} has no GPM counters (they came with Hopper)")
            # Two per device, used in turn: a sample is a buffer of the driver's.
            self._buffers = [[self._nvml.nvmlGpmSampleAlloc() for _ in "01"] for _ in self._handles]
        except self._nvml.NVMLError as error:
            raise Unsupported(f"NVML: {error}") from None
        self._newest = 0
        self._at_s = -math.inf

    def read(self) -> Values:
        """Since the last time, the mean over the devices. Raises Unsupported."""
        before_s, self._at_s = self._at_s, self._clock()
        self._newest = 1 - self._newest
        try:
            for handle, buffers in zip(self._handles, self._buffers, strict=True):
                self._nvml.nvmlGpmSampleGet(handle, buffers[self._newest])
            if self._at_s - before_s <= APART_S_MIN or math.isinf(before_s):
                return {}
            each = [self._compare(b[1 - self._newest], b[self._newest]) for b in self._buffers]
        except self._nvml.NVMLError as error:
            raise Unsupported(f"NVML: {error}") from None
        return {name: math.fsum(one[name] for one in each) / len(each) for name in each[0]}

    def _compare(self, before: Any, after: Any) -> Values:
        wanted = [*SHARES.items(), *RATES.items()]
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(wanted)
        asked.sample1, asked.sample2 = before, after
        for at, (_, number) in enumerate(wanted):
            asked.metrics[at].metricId = number
        self._nvml.nvmlGpmMetricsGet(asked)
        found: Values = {}
        for at, (name, _) in enumerate(wanted):
            metric = asked.metrics[at]
            good = metric.nvmlReturn == 0 and math.isfinite(metric.value)
            factor = 0.01 if name in SHARES else float(MIB)
            found[name] = metric.value * factor if good else math.nan
        return found

    def close(self) -> None:
        for buffers in self._buffers:
            for buffer in buffers:
                self._nvml.nvmlGpmSampleFree(buffer)
        self._nvml.nvmlShutdown()


def answer(values: Values) -> str:
    """One line: null where there is no value; an empty object where it was too soon to compare."""
    return json.dumps({name.value: None if math.isnan(value) else value for name, value in values.items()})


def main(uuids: Sequence[str]) -> int:
    try:
        import pynvml
    except ImportError:
        print(json.dumps({"problem": "the Python package nvidia-ml-py is not installed"}), flush=True)
        return 1
    try:
        gpm = Gpm(pynvml, uuids)
        for _ in sys.stdin:
            print(answer(gpm.read()), flush=True)
        gpm.close()
    except Unsupported as problem:
        print(json.dumps({"problem": str(problem)}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
