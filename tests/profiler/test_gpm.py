"""GPM's counters against a driver that is made up at the library's edge; hwtests ask a real one."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.profiler.driver.library import Library
from cotenant.profiler.indicators.counters import Unsupported
from cotenant.profiler.indicators.gpm import Gpm
from cotenant.profiler.indicators.sources import Indicator, IndicatorValues


class Nvml:
    """As much of pynvml as GPM needs: each device's counters rise by a known share of the time."""

    NVML_GPM_METRICS_GET_VERSION = 1

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, *, supported: bool = True, values: dict[int, float] | None = None) -> None:
        self.supported = supported
        self.values = values or {}
        self.allocated = 0
        self.compared: list[tuple[Any, Any]] = []
        self.counter = 0
        self.lost: set[str] = set()

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        return SimpleNamespace(isSupportedDevice=self.supported)

    def nvmlGpmSampleAlloc(self) -> dict[str, int]:
        self.allocated += 1
        return {"at": 0}

    def nvmlGpmSampleFree(self, sample: dict[str, int]) -> None:
        self.allocated -= 1

    def nvmlGpmSampleGet(self, handle: str, sample: dict[str, int]) -> None:
        if handle in self.lost:
            raise self.NVMLError(15)
        self.counter += 1
        sample["at"] = self.counter

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0, value=0.0) for _ in range(20)])

    def nvmlGpmMetricsGet(self, asked: Any) -> None:
        self.compared.append((asked.sample1["at"], asked.sample2["at"]))
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = self.values.get(metric.metricId, math.nan)
            metric.nvmlReturn = 0 if metric.metricId in self.values else 3


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def gpm(nvml: Nvml, clock: Clock, *uuids: str) -> Gpm:
    return Gpm(Library(nvml), uuids or ("GPU-1",), clock)


def read(source: Gpm) -> list[IndicatorValues]:
    taken = source.read()
    assert taken is not None
    return taken.devices


def test_percentages_become_shares_and_mib_become_bytes_and_the_rest_is_missing() -> None:
    clock = Clock()
    nvml = Nvml(values={2: 50.0, 12: 12.5, 20: 2.0, 60: 3.0, 61: 1.0})
    source = gpm(nvml, clock)
    assert source.read() is None, "the first sample has nothing to compare with"
    clock.now_s = 0.5
    (values,) = read(source)
    assert (values[Indicator.SMACT], values[Indicator.FP32A]) == (0.5, 0.125)
    assert values[Indicator.PCITX] == 2.0 * 2**20
    assert (values[Indicator.NVLRX], values[Indicator.NVLTX]) == (3.0 * 2**20, 1.0 * 2**20)
    assert math.isnan(values[Indicator.TENSO])


def test_each_sample_is_compared_with_the_one_before_and_buffers_are_given_back() -> None:
    clock, nvml = Clock(), Nvml(values={1: 1.0})
    source = gpm(nvml, clock, "GPU-1", "GPU-2")
    for at in range(4):
        clock.now_s = at * 0.5
        source.read()
    assert nvml.compared == [(1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8)]
    source.close()
    assert nvml.allocated == 0


def test_samples_that_are_too_close_together_are_not_compared_and_the_newer_one_counts_from_then_on() -> None:
    clock, nvml = Clock(), Nvml(values={1: 1.0})
    source = gpm(nvml, clock)
    taken = None
    for at_s in (0.0, 0.05, 0.5):
        clock.now_s = at_s
        taken = source.read()
    assert nvml.compared == [(2, 3)] and taken is not None and (taken.since_s, taken.at_s) == (0.05, 0.5)


def test_a_device_without_gpm_and_one_that_is_lost_are_said() -> None:
    with pytest.raises(Unsupported, match="GPU-1 has no GPM counters"):
        gpm(Nvml(supported=False), Clock())
    nvml = Nvml()
    source = gpm(nvml, Clock())
    nvml.lost = {"GPU-1"}
    with pytest.raises(Unsupported, match="fallen off the bus"):
        source.read()


def test_a_lost_device_does_not_take_the_others_values_with_it() -> None:
    clock, nvml = Clock(), Nvml(values={2: 50.0})
    source = gpm(nvml, clock, "GPU-1", "GPU-2")
    source.read()
    nvml.lost, clock.now_s = {"GPU-1"}, 0.5
    one, two = read(source)
    assert one == {} and two[Indicator.SMACT] == 0.5
    assert source.problems() == ["NVML: a GPU has fallen off the bus", ""]
    nvml.lost, clock.now_s = set(), 1.0
    assert read(source)[0] == {}, "back again, but there is nothing to compare with"
    clock.now_s = 1.5
    assert read(source)[0][Indicator.SMACT] == 0.5
