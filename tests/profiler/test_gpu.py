"""The GPU source against a driver that is made up at the library's edge; hwtests ask a real one."""

from __future__ import annotations

import json
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.profiler.cpu import CpuSource
from cotenant.profiler.gpm import RATES, SHARES, Gpm, Unsupported, answer
from cotenant.profiler.gpu import GpuSource
from cotenant.profiler.sources import Indicator


class Nvml:
    """As much of pynvml as GPM needs: each device's counters rise by a known share of the time."""

    NVML_GPM_METRICS_GET_VERSION = 1

    class NVMLError(Exception):
        pass

    def __init__(self, *, supported: bool = True, values: dict[int, float] | None = None) -> None:
        self.supported = supported
        self.values = values or {}
        self.allocated = 0
        self.compared: list[tuple[Any, Any]] = []
        self.counter = 0
        self.lost = False

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
        if self.lost:
            raise self.NVMLError("GPU is lost")
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
    return Gpm(nvml, uuids or ("GPU-1",), clock)  # type: ignore[arg-type]


def test_percentages_become_shares_and_mib_become_bytes_and_the_rest_is_missing() -> None:
    clock = Clock()
    nvml = Nvml(values={2: 50.0, 12: 12.5, 20: 2.0, 60: 3.0, 61: 1.0})
    source = gpm(nvml, clock)
    assert source.read() == {}, "the first sample has nothing to compare with"
    clock.now_s = 0.5
    values = source.read()
    assert (values[Indicator.SMACT], values[Indicator.FP32A]) == (0.5, 0.125)
    assert values[Indicator.PCITX] == 2.0 * 2**20
    assert (values[Indicator.NVLRX], values[Indicator.NVLTX]) == (3.0 * 2**20, 1.0 * 2**20)
    assert math.isnan(values[Indicator.TENSO])
    assert json.loads(answer(values))["TENSO"] is None


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
    for at_s in (0.0, 0.05, 0.5):
        clock.now_s = at_s
        source.read()
    assert nvml.compared == [(2, 3)]


def test_a_device_without_gpm_and_one_that_is_lost_are_said() -> None:
    with pytest.raises(Unsupported, match="GPU-1 has no GPM counters"):
        gpm(Nvml(supported=False), Clock())
    nvml = Nvml()
    source = gpm(nvml, Clock())
    nvml.lost = True
    with pytest.raises(Unsupported, match="GPU is lost"):
        source.read()


# --- The process behind it ------------------------------------------------------------------------

SAYS = "import sys\nfor n, _ in enumerate(sys.stdin): print({}, flush=True)"


def source(code: str) -> GpuSource:
    return GpuSource(("GPU-1",), CpuSource([], 1), command=(sys.executable, "-c", code))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may be busy; how long a supervisor waits is another matter."""
    for name in ("START_S_MAX", "ANSWER_S_MAX"):
        monkeypatch.setattr(f"cotenant.profiler.gpu.{name}", 60.0)


def test_what_the_process_says_is_read_beside_the_hosts_own_values() -> None:
    asked = source(SAYS.format("""'{}' if n == 0 else '{"SMACT": 0.25, "FP32A": null}'"""))
    try:
        first, second = asked.sample(), asked.sample()
    finally:
        asked.close()
    assert "100 ms apart" in first[Indicator.SMACT].reason
    assert (second[Indicator.SMACT].value, second[Indicator.SMACT].source) == (0.25, "gpm"), second
    assert second[Indicator.FP32A].missing and second[Indicator.FP32A].source == "gpm"
    assert second[Indicator.CPU].source == "cpu"
    assert {*SHARES, *RATES} <= second.keys()


IN_PIECES = """
import sys
for _ in sys.stdin:
    for part in ('{"SM', 'ACT": 0.5}', chr(10)):
        sys.stdout.write(part)
        sys.stdout.flush()
"""


def test_an_answer_may_come_in_pieces() -> None:
    asked = source(IN_PIECES)
    try:
        said = [asked.sample()[Indicator.SMACT].value for _ in range(20)]
    finally:
        asked.close()
    assert said == [0.5] * 20


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (SAYS.format("""'{"problem": "no driver"}'"""), "no driver"),
        (SAYS.format("'what?'"), "makes no sense"),
        ("pass", "has ended"),
        ("import sys; [None for _ in sys.stdin]", "did not answer within"),
    ],
)
def test_a_process_that_says_nothing_sensible_is_left_behind_with_the_reason(
    code: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "did not answer" in why:
        monkeypatch.setattr("cotenant.profiler.gpu.START_S_MAX", 0.3)
    asked = source(code)
    for _ in range(2):
        reading = asked.sample()[Indicator.SMACT]
        assert reading.missing and why in reading.reason
    assert asked._process is None


def test_without_a_driver_the_real_process_says_so() -> None:
    asked = GpuSource(("GPU-none",), CpuSource([], 1))
    reading = asked.sample()[Indicator.SMACT]
    asked.close()
    assert reading.missing and reading.reason
