"""FAKE. As much of pynvml as plain NVML's counters need; FAKE_NVML is a JSON object that says how it behaves.

gpm         whether the devices have GPM counters
lost        UUIDs that have fallen off the bus
nvlink      KiB per call that the links' counters rise by
"""

from __future__ import annotations

import json
import math
import os
from types import SimpleNamespace
from typing import Any

SAYS: dict[str, Any] = json.loads(os.environ.get("FAKE_NVML", "{}"))
NVML_GPM_METRICS_GET_VERSION = 1
_calls = {"nvlink": 0}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


def nvmlInit() -> None:
    if SAYS.get("driver") is False:
        raise NVMLError(9)


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    if uuid in SAYS.get("gone", []):
        raise NVMLError(6)
    return uuid


def nvmlGpmQueryDeviceSupport(handle: str) -> Any:
    gpm = SAYS.get("gpm", False)
    return SimpleNamespace(isSupportedDevice=handle in gpm if isinstance(gpm, list) else gpm)


def nvmlGpmSampleAlloc() -> dict[str, int]:
    return {}


def nvmlGpmSampleFree(sample: dict[str, int]) -> None:
    pass


def nvmlGpmSampleGet(handle: str, sample: dict[str, int]) -> None:
    _check(handle)
    if SAYS.get("gpm") == "forbidden":
        raise NVMLError(4)


def c_nvmlGpmMetricsGet_t() -> Any:
    return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0, value=0.0) for _ in range(20)])


def nvmlGpmMetricsGet(asked: Any) -> None:
    for metric in asked.metrics[: asked.numMetrics]:
        known = metric.metricId in (1, 2)
        metric.value, metric.nvmlReturn = (50.0, 0) if known else (math.nan, 3)


def _check(handle: str) -> None:
    if handle in SAYS.get("lost", []):
        raise NVMLError(15)


def nvmlDeviceGetUtilizationRates(handle: str) -> Any:
    _check(handle)
    return SimpleNamespace(gpu=40, memory=15)


def nvmlDeviceGetPcieThroughput(handle: str, counter: int) -> int:
    return 3000 + counter


def nvmlDeviceGetFieldValues(handle: str, fields: list[tuple[int, int]]) -> list[Any]:
    _calls["nvlink"] += 1
    kib = SAYS.get("nvlink")
    code = 0 if kib is not None else 3
    value = SimpleNamespace(ullVal=(kib or 0) * _calls["nvlink"])
    return [SimpleNamespace(nvmlReturn=code, valueType=3, value=value) for _ in fields]


def nvmlDeviceGetMemoryInfo(handle: str) -> Any:
    return SimpleNamespace(used=2 * 2**30, total=16 * 2**30)
