"""Gradients in micro-batches equal those of the whole batch on this device; what they save in memory.

Rule: each comparison is a process of its own, so that peaks are its own and a context does not stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from hwtests.device import Device
from hwtests.host import ROOT
from hwtests.measuring import Measure

pytestmark = pytest.mark.gpu

TOLERANCE = {"fp64": 1e-12, "fp32": 1e-5, "bf16": 5e-2}
"""Of the largest entry of the gradient. bf16 has 8 bits of mantissa, and sums in another order."""
ZERO_CODE_TOLERANCE = 1e-10
TIMEOUT_S = 300.0
SMALL = ("--rows", "64", "--width", "32", "--layers", "2")


def run(device: Device, *words: str) -> Any:
    """What a program prints on its last line, as JSON."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=device.environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def compared(device: Device, *words: str) -> dict[str, Any]:
    size = SMALL if device.kind == "cpu" else ()
    found: dict[str, Any] = run(device, "-m", "hwtests.gradients", "--device", device.kind, *size, *words)
    return found


@pytest.mark.parametrize("precision", TOLERANCE)
def test_the_gradient_is_that_of_the_whole_batch(device: Device, precision: str, measured: Measure) -> None:
    found = compared(device, "--precision", precision, "--steps", "4")
    measured(f"{precision}, s = 4: apart", found["apart"], "of the largest entry")
    assert found["apart"] <= TOLERANCE[precision]


@pytest.mark.parametrize("steps", [2, 4, 8])
def test_memory_falls_with_s(cuda: Device, steps: int, measured: Measure) -> None:
    peaks = compared(cuda, "--steps", str(steps))["peak_mib"]
    measured(f"peak at s = {steps}", peaks[str(steps)], "MiB", f"at s = 1: {peaks['1']:.0f} MiB")
    assert peaks[str(steps)] < peaks["1"]


@pytest.mark.parametrize("kind", ["sum", "batchnorm"])
def test_what_cannot_be_accumulated_is_refused(device: Device, kind: str, measured: Measure) -> None:
    """A sum that is declared a mean is found by the check of a few rows, on the device."""
    said = compared(device, "--refused", kind)["refused"]
    measured(f"{kind}: refused with", said or "nothing")
    assert said


def test_a_script_without_a_changed_line(device: Device, measured: Measure) -> None:
    """A loss that is a sum over rows, clipping and momentum: split and whole end with the same weights."""
    launcher = ("-m", "cotenant.gradaccum.launch", "--steps")
    script = (str(ROOT / "hwtests" / "plain_script.py"), "--device", device.kind)
    whole, split = (run(device, *launcher, steps, *script) for steps in ("1", "4"))
    apart = max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(whole, split, strict=True))
    measured("without a changed line, s = 4: apart", apart, "of each parameter's norm")
    assert apart <= ZERO_CODE_TOLERANCE
