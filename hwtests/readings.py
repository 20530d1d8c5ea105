"""What each source says of a GPU over a window: GPM by the product, DCGM by its own program, plain NVML.

Rule: a source that has no value for an indicator leaves it out; the reason is kept beside. Units are those of
`profiler.sources`: shares from 0 to 1, bytes per second.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cotenant.profiler.cpu import CpuSource
from cotenant.profiler.driver.library import open_library
from cotenant.profiler.gpu import GpuSource
from cotenant.profiler.nvml import Nvml
from cotenant.profiler.sources import Indicator, Sample

DCGM_FIELDS: Final = {
    1001: Indicator.GRACT,
    1002: Indicator.SMACT,
    1003: Indicator.SMOCC,
    1004: Indicator.TENSO,
    1005: Indicator.DRAMA,
    1007: Indicator.FP32A,
    1008: Indicator.FP16A,
    1009: Indicator.PCITX,
    1010: Indicator.PCIRX,
}
"""By number: names differ between versions."""
DCGM_PERIOD_MS: Final = 200
DCGM_SLACK_S: Final = 20.0
GPM_PROGRAM: Final = "cotenant.profiler.gpm"

Values = Mapping[Indicator, float]


class NoReading(Exception):
    """The source gave nothing; the text has its own words."""


def gpm(uuid: str, seconds: float) -> Values:
    """One comparison of two samples, as far apart as the window is long. Raises NoReading."""
    source = GpuSource((uuid,), CpuSource([os.getpid()], 1))
    try:
        source.sample()
        time.sleep(seconds)
        sample = source.sample()
    finally:
        source.close()
    found = {name: reading.value for name, reading in sample.items() if not reading.missing}
    if Indicator.GRACT not in found:
        raise NoReading(sample[Indicator.GRACT].reason)
    return found


def gpm_series(uuid: str, seconds: float, period_s: float) -> tuple[list[Sample], float]:
    """Samples at a period, and the processor seconds that taking them cost (ours and the child's)."""
    import psutil

    source = GpuSource((uuid,), CpuSource([os.getpid()], 1))
    samples = []
    try:
        source.sample()
        children = [child for child in psutil.Process().children() if GPM_PROGRAM in child.cmdline()]
        before_s = _cpu_s(children)
        due_s = time.monotonic()
        for _ in range(max(2, int(seconds / period_s))):
            due_s += period_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            samples.append(source.sample())
        cost_s = _cpu_s(children) - before_s
    finally:
        source.close()
    return samples, cost_s


def _cpu_s(children: Iterable[Any]) -> float:
    times = [time.process_time()]
    for child in children:
        spent = child.cpu_times()
        times.append(spent.user + spent.system)
    return sum(times)


def plain_nvml(uuid: str, seconds: float) -> Values:
    """What every GPU has: coarse use, PCIe over 20 ms, NVLink. The mean over the window."""
    seen: dict[Indicator, list[float]] = {}
    counters = Nvml(open_library(), (uuid,))
    try:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            taken = counters.read()
            for name, value in taken.devices[0].items() if taken is not None else ():
                seen.setdefault(name, []).append(value)
            time.sleep(counters.period_s)
    finally:
        counters.close()
    known = {name: [value for value in values if not math.isnan(value)] for name, values in seen.items()}
    return {name: statistics.fmean(values) for name, values in known.items() if values}


def dcgm(index: int, seconds: float) -> Values:
    """`dcgmi dmon`, which asks the host engine. Raises NoReading."""
    count = max(3, int(seconds * 1000 / DCGM_PERIOD_MS))
    words = ["dcgmi", "dmon", "-i", str(index), "-e", ",".join(map(str, DCGM_FIELDS))]
    words += ["-d", str(DCGM_PERIOD_MS), "-c", str(count)]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds + DCGM_SLACK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoReading("dcgmi did not end in time") from None
    found = dmon_means(done.stdout)
    if not found:
        raise NoReading((done.stdout + done.stderr).strip()[-300:] or f"dcgmi: exit {done.returncode}")
    return found


def dmon_means(output: str) -> dict[Indicator, float]:
    """Means of the columns of `dcgmi dmon`: rows start with `GPU N`, and N/A is no value."""
    seen: dict[Indicator, list[float]] = {}
    for line in output.splitlines():
        row = re.match(r"\s*GPU\s+\d+\s+(.*)", line)
        if row is None:
            continue
        for name, cell in zip(DCGM_FIELDS.values(), row[1].split(), strict=False):
            try:
                seen.setdefault(name, []).append(float(cell))
            except ValueError:
                continue
    return {name: statistics.fmean(values) for name, values in seen.items() if values}
