"""Caps that really bite: a share of the multiprocessors, device memory under MPS, and torch's own fraction.

Rule: a cap is believed when a load meets it, not when a program echoes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.checkpoint.talk.protocol import ENV_MEMORY_FRACTION
from cotenant.mps.environment import MemoryLimit
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.jobs import Job
from hwtests.measuring import Measure
from hwtests.private_mps import PrivateMps

pytestmark = pytest.mark.gpu

LIMIT_MIB = 4096
CONTEXT_MIB_MAX = 1536
"""A client's own context, of which part counts against its limit."""
EXPECTED = {50: (0.35, 0.70), 25: (0.15, 0.42)}
"""Bounds of the share of the uncapped rate: clocks rise when fewer multiprocessors work."""


def test_a_percentage_caps_the_arithmetic(
    cuda: Device, mps: PrivateMps, seconds: float, measured: Measure
) -> None:
    """FP32 without tensor cores: bound by multiprocessors, and least by power."""
    rates: dict[int, float] = {}
    for percentage in (100, 50, 25):
        with Busy("fp32", cuda, env=mps.environment(percentage=percentage)) as load:
            said = load.ready()
            mps.await_clients(load.pid)
            rates[percentage] = load.rate(seconds)
            measured(f"fp32 matmul at {percentage} %", rates[percentage], "TFLOP/s")
            measured(
                f"multiprocessors shown at {percentage} %", said.get("multiprocessors"), otherwise="not said"
            )
    for percentage, (low, high) in EXPECTED.items():
        share = rates[percentage] / rates[100]
        measured(f"rate at {percentage} % over that at 100 %", share)
        assert low < share < high, rates


def test_a_memory_limit_of_mps_is_met(cuda: Device, mps: PrivateMps, measured: Measure) -> None:
    """As the product writes it: by the number of the device."""
    limits = (MemoryLimit(device_uuid=cuda.uuid, limit_mib=LIMIT_MIB),)
    with Busy("hold", cuda, env=mps.environment(limits)) as load:
        shown = load.ready()
        mps.await_clients(load.pid)
        held = load.until(lambda said: "held_mib" in said, timeout_s=60.0)
    measured("limit", LIMIT_MIB, "MiB")
    measured("taken below it", held["held_mib"], "MiB")
    measured("how the allocation failed", held["error"] or "it did not")
    measured("mem_get_info, total", shown.get("total_mib"), "MiB", otherwise="not said")
    measured("mem_get_info, free at start", shown.get("free_mib"), "MiB", otherwise="not said")
    assert "out of memory" in held["error"].lower()
    assert LIMIT_MIB - CONTEXT_MIB_MAX <= held["held_mib"] <= LIMIT_MIB


def test_the_newcomer_meets_its_limit_and_the_incumbent_does_not_notice(
    cuda: Device, mps: PrivateMps, seconds: float, measured: Measure
) -> None:
    limits = (MemoryLimit(device_uuid=cuda.uuid, limit_mib=LIMIT_MIB),)
    with Busy("matmul", cuda, env=mps.environment()) as incumbent:
        incumbent.ready()
        with Busy("hold", cuda, env=mps.environment(limits)) as newcomer:
            newcomer.until(lambda said: "held_mib" in said, timeout_s=120.0)
            beside = incumbent.rate(seconds)
        measured("the incumbent beside a newcomer at its limit", beside, "TFLOP/s")
        assert beside > 0 and not incumbent.error()


def test_torch_s_fraction_is_met_without_mps(cuda: Device, tmp_path: Path, measured: Measure) -> None:
    """What a job is given where it time-slices."""
    job = Job(name="large", script="language_model", batch_size=256, scale=8, precision="fp32")
    env = {ENV_MEMORY_FRACTION: "0.02"}
    with job.plain(cuda, tmp_path, "--steps", "3", env=env) as rank:
        code = rank.process.wait(240.0)
    measured("how a job meets its fraction", rank.last_line())
    assert code != 0 and "memory" in rank.last_line().lower()


def test_priority_of_clients(cuda: Device, mps: PrivateMps, seconds: float, measured: Measure) -> None:
    """A hint to the hardware: recorded, not asserted."""
    low = {**mps.environment(), "CUDA_MPS_CLIENT_PRIORITY": "1"}
    with Busy("matmul", cuda, env=mps.environment()) as normal, Busy("matmul", cuda, env=low) as below:
        normal.ready(), below.ready()
        mps.await_clients(normal.pid, below.pid)
        rates = (normal.rate(seconds), below.rate(seconds))
    measured("beside each other: normal priority", rates[0], "TFLOP/s")
    measured("beside each other: below normal", rates[1], "TFLOP/s")
    assert min(rates) > 0
