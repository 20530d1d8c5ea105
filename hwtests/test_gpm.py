"""GPM's counters on a real GPU: what a known load does to them. Hopper and later.

Rule: wide bounds. These tests are about the right counter in the right unit, not about how fast a GPU is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from cotenant.profiler.cpu import CpuSource
from cotenant.profiler.gpm import RATES, SHARES
from cotenant.profiler.gpu import GpuSource
from cotenant.profiler.sources import Indicator, Sample, Wanted

pytestmark = pytest.mark.gpu

BUSY_S = 1.5


@pytest.fixture
def source(cuda_uuid: str) -> Iterator[GpuSource]:
    made = GpuSource((cuda_uuid,), CpuSource([os.getpid()], 1), wanted=Wanted(source="gpm"))
    made.sample()
    if made.name != "gpm" or made.problem:
        made.close()
        pytest.skip(f"no GPM on this machine: {made.problem or made.why}")
    yield made
    made.close()


def during(source: GpuSource, work: Callable[[], object]) -> Sample:
    """The indicators of a time that is filled with this work."""
    import torch

    work()
    torch.cuda.synchronize()
    source.sample()
    until_s = time.monotonic() + BUSY_S
    while time.monotonic() < until_s:
        for _ in range(20):
            work()
        torch.cuda.synchronize()
    return source.sample()


def test_an_idle_gpu_is_idle(source: GpuSource) -> None:
    source.sample()
    time.sleep(1.0)
    sample = source.sample()
    assert sample[Indicator.GRACT].value < 0.2 and sample[Indicator.SMACT].value < 0.2


def test_all_counters_of_table_2_are_there_and_in_their_range(source: GpuSource) -> None:
    import torch

    a = torch.randn(4096, 4096, device="cuda")
    sample = during(source, lambda: a @ a)
    for name in SHARES:
        reading = sample[name]
        assert reading.missing or 0.0 <= reading.value <= 1.0, (name, reading)
    for name in (Indicator.GRACT, Indicator.SMACT, Indicator.SMOCC, Indicator.DRAMA, Indicator.FP32A):
        assert not sample[name].missing, (name, sample[name])
    for name in RATES:
        assert sample[name].missing or sample[name].value >= 0.0
    assert sample[Indicator.GRACT].value > 0.5 and sample[Indicator.SMACT].value > 0.5


def test_tensor_cores_and_fp32_units_are_told_apart(source: GpuSource) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    half = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    single = torch.randn(4096, 4096, device="cuda")
    tensor, fp32 = during(source, lambda: half @ half), during(source, lambda: single @ single)
    assert tensor[Indicator.TENSO].value > 0.2 > fp32[Indicator.TENSO].value
    assert fp32[Indicator.FP32A].value > 0.2 > tensor[Indicator.FP32A].value


def test_what_crosses_pcie_is_counted_in_bytes_and_in_the_right_direction(source: GpuSource) -> None:
    import torch

    host = torch.empty(64 * 2**20, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")
    sample = during(source, lambda: device.copy_(host, non_blocking=True))
    assert sample[Indicator.PCIRX].value > 1e9, "the GPU receives"
    assert sample[Indicator.PCIRX].value > 5 * sample[Indicator.PCITX].value
