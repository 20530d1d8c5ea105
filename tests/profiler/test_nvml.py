"""Plain NVML: what it has in the right unit, and nothing that it has not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.profiler.driver.library import Library
from cotenant.profiler.indicators.counters import Unsupported
from cotenant.profiler.indicators.nvml import ALL_LINKS, Nvml
from cotenant.profiler.indicators.sources import Indicator


class Binding:
    """As much of pynvml as plain counters need."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.kib: dict[int, int | None] = {138: 0, 139: 0}
        self.pcie = True

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle in self.lost:
            raise self.NVMLError(15)
        return SimpleNamespace(gpu=40, memory=15)

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> int:
        if not self.pcie:
            raise self.NVMLError(3)
        return {0: 3, 1: 5}[counter]

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[tuple[int, int]]) -> list[Any]:
        assert all(scope == ALL_LINKS for _, scope in fields)
        return [self._field(number) for number, _ in fields]

    def _field(self, number: int) -> Any:
        kib = self.kib[number]
        value = SimpleNamespace(ullVal=kib or 0)
        return SimpleNamespace(nvmlReturn=3 if kib is None else 0, valueType=3, value=value)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def nvml(library: Binding, clock: Clock, *uuids: str) -> Nvml:
    return Nvml(Library(library), uuids or ("GPU-1",), clock)


def test_what_nvml_has_in_the_units_of_the_others() -> None:
    library, clock = Binding(), Clock()
    source = nvml(library, clock)
    assert source.read() is None
    clock.now_s, library.kib = 0.5, {138: 100, 139: 200}
    taken = source.read()
    assert taken is not None and (taken.since_s, taken.at_s) == (0.0, 0.5)
    (values,) = taken.devices
    assert values == {
        Indicator.GRACT: 0.4,
        Indicator.DRAMA: 0.15,
        Indicator.PCITX: 3000.0,
        Indicator.PCIRX: 5000.0,
        Indicator.NVLTX: 2 * 100 * 1024.0,
        Indicator.NVLRX: 2 * 200 * 1024.0,
    }


def test_smact_and_the_pipes_are_not_made_up() -> None:
    pipes = {Indicator.SMACT, Indicator.SMOCC, Indicator.TENSO, Indicator.FP32A, Indicator.FP16A}
    assert not pipes & set(Nvml.offers)


def test_a_gpu_without_links_or_pcie_counters_has_no_such_values() -> None:
    library, clock = Binding(), Clock()
    library.kib, library.pcie = {138: None, 139: None}, False
    source = nvml(library, clock)
    source.read()
    clock.now_s = 1.0
    taken = source.read()
    assert taken is not None
    missing = [name for name, value in taken.devices[0].items() if math.isnan(value)]
    assert missing == [Indicator.PCITX, Indicator.PCIRX, Indicator.NVLTX, Indicator.NVLRX]


def test_a_link_counter_that_was_set_back_costs_one_interval() -> None:
    library, clock = Binding(), Clock()
    source = nvml(library, clock)
    seen = []
    for at, kib in enumerate((1000, 2000, 500, 1500)):
        clock.now_s, library.kib = float(at), {138: kib, 139: kib}
        taken = source.read()
        seen.append(None if taken is None else taken.devices[0][Indicator.NVLTX])
    assert seen[0] is None and math.isnan(seen[2] or 0.0)
    assert (seen[1], seen[3]) == (1000 * 1024.0, 1000 * 1024.0)


def test_many_gpus_are_read_less_often_because_pcie_counters_take_their_time() -> None:
    assert nvml(Binding(), Clock()).period_s == 0.2
    assert nvml(Binding(), Clock(), *(f"GPU-{n}" for n in range(8))).period_s == pytest.approx(0.64)


def test_one_lost_gpu_is_named_and_the_other_goes_on() -> None:
    library, clock = Binding(), Clock()
    source = nvml(library, clock, "GPU-1", "GPU-2")
    source.read()
    library.lost, clock.now_s = {"GPU-1"}, 1.0
    taken = source.read()
    assert taken is not None and taken.devices[0] == {} and taken.devices[1][Indicator.GRACT] == 0.4
    assert source.problems() == ["NVML: a GPU has fallen off the bus", ""]
    library.lost = {"GPU-1", "GPU-2"}
    with pytest.raises(Unsupported, match="fallen off the bus"):
        source.read()
