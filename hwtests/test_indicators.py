"""Indicators under known loads, from each source there is: the right counter, unit and direction.

Rule: wide bounds, from what the load is: not a benchmark. Each load is a process of its own, and all sources
look at the same one in turn.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cotenant.profiler.driver.facts import NvmlError
from cotenant.profiler.driver.library import Library, handle_of, open_library
from cotenant.profiler.indicators.gpm import SHARES
from cotenant.profiler.indicators.sources import Indicator, Wish
from hwtests import host, readings
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.measuring import Measure
from hwtests.private_mps import PrivateMps
from hwtests.readings import Values

pytestmark = pytest.mark.gpu

Bound = tuple[float, float]
ANY = float("inf")

FINE: dict[str, dict[Indicator, Bound]] = {
    "matmul": {
        Indicator.GRACT: (0.9, 1.01),
        Indicator.SMACT: (0.6, 1.01),
        Indicator.TENSO: (0.2, 1.01),
        Indicator.FP32A: (0, 0.3),
    },
    "fp32": {
        Indicator.GRACT: (0.9, 1.01),
        Indicator.SMACT: (0.6, 1.01),
        Indicator.TENSO: (0, 0.05),
        Indicator.FP32A: (0.2, 1.01),
    },
    "d2d": {
        Indicator.GRACT: (0.5, 1.01),
        Indicator.DRAMA: (0.4, 1.01),
        Indicator.TENSO: (0, 0.05),
        Indicator.PCIRX: (0, 2e9),
    },
    "h2d": {Indicator.PCIRX: (1e9, ANY), Indicator.TENSO: (0, 0.05), Indicator.SMACT: (0, 0.3)},
    "d2h": {Indicator.PCITX: (1e9, ANY), Indicator.TENSO: (0, 0.05), Indicator.SMACT: (0, 0.3)},
    "idle": {
        Indicator.GRACT: (0, 0.1),
        Indicator.SMACT: (0, 0.1),
        Indicator.DRAMA: (0, 0.1),
        Indicator.PCIRX: (0, 5e8),
    },
}
"""For counters of the hardware (GPM, DCGM)."""
COARSE: dict[str, dict[Indicator, Bound]] = {
    "matmul": {Indicator.GRACT: (0.9, 1.01)},
    "d2d": {Indicator.GRACT: (0.9, 1.01), Indicator.DRAMA: (0.3, 1.01)},
    "h2d": {Indicator.PCIRX: (1e9, ANY)},
    "d2h": {Indicator.PCITX: (1e9, ANY)},
    "idle": {Indicator.GRACT: (0, 0.1), Indicator.DRAMA: (0, 0.1)},
}
"""For plain NVML: the share of the time in which anything ran."""

SOURCES: dict[str, tuple[Callable[[], str], dict[str, dict[Indicator, Bound]]]] = {
    "gpm": (host.lacks_gpm, FINE),
    "dcgm": (lambda: "", FINE),
    "dcgmi": (host.lacks_dcgm, FINE),
    "nvml": (lambda: "", COARSE),
}
"""The product's own, which say themselves what they lack, and DCGM's program to compare with."""
CASES = [(source, load) for load in FINE for source, (_, bounds) in SOURCES.items() if load in bounds]
ONE_WAY = {"h2d": (Indicator.PCIRX, Indicator.PCITX), "d2h": (Indicator.PCITX, Indicator.PCIRX)}


def read(source: str, device: Device, seconds: float) -> Values:
    """Skips where the source says that it has nothing."""
    gpu = host.first_gpu()
    assert gpu is not None
    try:
        if source == "dcgmi":
            return readings.dcgmi(gpu.index, seconds)
        return readings.product(device.uuid, seconds, cast(Wish, source))
    except readings.NoReading as problem:
        pytest.skip(f"{source} gives no values: {problem}")


@pytest.fixture(scope="module")
def busy(request: pytest.FixtureRequest, cuda: Device) -> Iterator[Busy]:
    """A load that has been at it for a second; tests of one load stand together and share it."""
    with Busy(request.param, cuda) as running:
        running.ready()
        running.rate(1.0)
        yield running


@pytest.mark.parametrize(("source", "busy"), CASES, indirect=["busy"])
def test_under_a_known_load(cuda: Device, source: str, busy: Busy, seconds: float, measured: Measure) -> None:
    lacks, bounds = SOURCES[source]
    load = busy.kind
    host.skip_if(lacks())
    found = read(source, cuda, seconds)
    assert not busy.error()
    for name, value in found.items():
        measured(f"{source}, {load}: {name.value}", value)
        assert value >= 0.0 and (name not in SHARES or value <= 1.01), f"{name.value}: {value}"
    for name, (low, high) in bounds[load].items():
        assert name in found, f"{source} has no {name.value}"
        assert low <= found[name] <= high, f"{name.value} of {load} by {source}"
    if load in ONE_WAY:
        busy_way, quiet_way = ONE_WAY[load]
        assert found[busy_way] > 3 * found.get(quiet_way, 0.0), "the GPU's own view: receiving is not sending"


@pytest.mark.parametrize("period_ms", [100, 200, 500])
def test_sampling_at(cuda: Device, period_ms: int, seconds: float, measured: Measure) -> None:
    """What a period costs whoever asks, and what of it is missing; what it does to the load."""
    host.skip_if(host.lacks_gpm())
    with Busy("matmul", cuda) as load:
        load.ready()
        before = load.rate(seconds)
        since_s = time.monotonic()
        try:
            series = readings.gpm_series(cuda.uuid, seconds, period_ms / 1000)
        except readings.NoReading as problem:
            pytest.skip(f"gpm gives no values: {problem}")
        sampled = load.rate_between(since_s, time.monotonic())
    known = [value for value in series.values if not math.isnan(value)]
    measured(f"{period_ms} ms: samples with a value", len(known), f"of {len(series.values)}")
    measured(f"{period_ms} ms: asked too soon", series.late)
    measured(f"{period_ms} ms: read as root", os.geteuid() == 0)
    measured(f"{period_ms} ms: processor time", series.cores, "cores")
    measured(f"{period_ms} ms: the load, sampled over not sampled", sampled / before)
    assert known, "no sample had a value"
    assert period_ms == 100 or (series.late == 0 and len(known) == len(series.values)), (
        "only the shortest period may come too soon"
    )
    assert sampled > 0.9 * before


def test_what_the_products_sampling_costs(cuda: Device, seconds: float, measured: Measure) -> None:
    """Its own period, its own child: what a profiled job pays."""
    host.skip_if(host.lacks_gpm())
    with Busy("matmul", cuda) as load:
        load.ready()
        plain = load.rate(seconds)
        since_s = time.monotonic()
        try:
            cores = readings.gpm_cost(cuda.uuid, seconds)
        except readings.NoReading as problem:
            pytest.skip(f"gpm gives no values: {problem}")
        sampled = load.rate_between(since_s, time.monotonic())
    measured("processor time of the product's sampling", cores, "cores")
    measured("the load, sampled by the product over not sampled", sampled / plain)
    assert sampled > 0.9 * plain


def test_counters_under_mps(cuda: Device, mps: PrivateMps, seconds: float, measured: Measure) -> None:
    """They are the whole GPU's: both clients together."""
    host.skip_if(host.lacks_gpm())
    env = mps.environment()
    with Busy("matmul", cuda, env=env) as one, Busy("matmul", cuda, env=env) as two:
        one.ready(), two.ready()
        mps.await_clients(one.pid, two.pid)
        found = read("gpm", cuda, seconds)
    for name, value in found.items():
        measured(f"two clients of MPS: {name.value}", value)
    assert found[Indicator.SMACT] > 0.5


RAW = {248: "SM cycles elapsed", 249: "SM cycles active"}


def test_raw_counters(cuda: Device, measured: Measure) -> None:
    """Whether this driver has the counters that give exact means of a window. Recorded."""
    host.skip_if(host.lacks_gpm())
    with open_library() as nvml:
        handle = handle_of(nvml, cuda.uuid)
        samples = [nvml.ask("nvmlGpmSampleAlloc") for _ in "01"]
        try:
            for sample in samples:
                nvml.ask("nvmlGpmSampleGet", handle, sample)
                time.sleep(0.3)
            for number, name in RAW.items():
                measured(f"GPM {number}, {name}", *_compared(nvml, samples, number))
        finally:
            for sample in samples:
                nvml.ask("nvmlGpmSampleFree", sample)


def _compared(nvml: Library, samples: list[Any], number: int) -> tuple[float | None, str, str, str]:
    """Value, unit, note, and why there is none: as `measured` takes them."""
    asked = nvml.binding.c_nvmlGpmMetricsGet_t()
    asked.version = nvml.binding.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = 1
    asked.sample1, asked.sample2 = samples
    asked.metrics[0].metricId = number
    try:
        nvml.ask("nvmlGpmMetricsGet", asked)
    except NvmlError as error:
        return None, "", "", str(error)
    metric = asked.metrics[0]
    if metric.nvmlReturn != 0:
        return None, "", "", f"NVML says {metric.nvmlReturn}"
    return float(metric.value), "cycles", "", ""
