"""What each source says of a GPU over a window: as the product reads it, and DCGM by its own program as well.

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
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from cotenant.profiler.driver.facts import NvmlError
from cotenant.profiler.driver.library import Library, handle_of, memory_mib, open_library
from cotenant.profiler.indicators.counters import Unsupported
from cotenant.profiler.indicators.cpu import CpuSource
from cotenant.profiler.indicators.device_process import CHILD, START_S_MAX
from cotenant.profiler.indicators.gpm import Gpm
from cotenant.profiler.indicators.gpu import GpuSource
from cotenant.profiler.indicators.sources import Indicator, Wanted, Windows, Wish
from hwtests.device import Device

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

Values = Mapping[Indicator, float]


class NoReading(Exception):
    """The source gave nothing; the text has its own words."""


def product(uuid: str, seconds: float, wish: Wish) -> Values:
    """As the product reads it: means over the window, of this source and of no other. Raises NoReading."""
    source, windows = _product(uuid, wish), Windows()
    try:
        source.samples(START_S_MAX)  # It waits until the child has chosen its source.
        time.sleep(seconds)
        for sample in source.samples(START_S_MAX):
            windows.add(sample)
    finally:
        source.close()
    found = windows.summaries()
    known = {name: each.mean for name, each in found.items() if each.source == wish and each.count}
    if Indicator.GRACT not in known:
        raise NoReading(found[Indicator.GRACT].reason if Indicator.GRACT in found else source.problem)
    return known


def gpm_cost(uuid: str, seconds: float) -> float:
    """Processor seconds per second that the product's own sampling takes, its child included.

    Raises:
        NoReading: there is nothing to sample, or the child is not to be found.
    """
    import psutil

    source = _product(uuid, "gpm")
    try:
        source.samples(START_S_MAX)  # It waits until the child has chosen its source.
        child = next((each for each in psutil.Process().children() if CHILD in each.cmdline()), None)
        if source.problem or child is None:
            raise NoReading(source.problem or "the child that samples is not to be seen")
        before_s, since_s = _cpu_s(child), time.monotonic()
        while time.monotonic() - since_s < seconds:
            time.sleep(0.5)
            source.samples()
        return (_cpu_s(child) - before_s) / (time.monotonic() - since_s)
    finally:
        source.close()


def _product(uuid: str, wish: Wish) -> GpuSource:
    return GpuSource((uuid,), CpuSource([os.getpid()], 1), wanted=Wanted(source=wish))


def _cpu_s(child: Any) -> float:
    """Of the child and of the thread that asks it."""
    spent = child.cpu_times()
    return float(spent.user + spent.system) + time.thread_time()


class Series(NamedTuple):
    """GPM, asked here and at one's own period."""

    values: list[float]
    """SMACT of each sample; NaN: that one had no value."""
    late: int
    """Samples that were asked for too soon after the one before, and gave nothing."""
    cores: float
    """Processor seconds per second."""


def gpm_series(uuid: str, seconds: float, period_s: float) -> Series:
    """Raises NoReading."""
    try:
        counters = Gpm(open_library(), (uuid,))
    except (Unsupported, NvmlError) as problem:
        raise NoReading(str(problem)) from None
    values: list[float] = []
    asked = 0
    try:
        counters.read()
        began_s, before_s = time.monotonic(), time.thread_time()
        while time.monotonic() - began_s < seconds:
            asked += 1
            time.sleep(period_s)  # No timetable: one that came late must not hurry the next.
            taken = counters.read()
            if taken is not None:
                values.append(taken.devices[0].get(Indicator.SMACT, math.nan))
        spent_s, lasted_s = time.thread_time() - before_s, time.monotonic() - began_s
    except Unsupported as problem:
        raise NoReading(str(problem)) from None
    finally:
        counters.close()
    return Series(values=values, late=asked - len(values), cores=spent_s / lasted_s)


def dcgmi(index: int, seconds: float) -> Values:
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


def used_mib(device: Device) -> float:
    """Of the whole device, as nvidia-smi shows it; NaN on a CPU."""
    if device.kind != "cuda":
        return math.nan
    return float(memory_mib(*_opened(device.uuid)).taken_mib)


@cache
def _opened(uuid: str) -> tuple[Library, Any]:
    """The library and the device's handle. Opened once: asked often, and it may be slow to start."""
    nvml = open_library()
    return nvml, handle_of(nvml, uuid)
