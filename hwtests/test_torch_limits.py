"""torch keeps to its part of each GPU in a plain script, however it is launched, and opens no GPU for that.

Rule: what is given to the script is what an attempt gives it: the folder of the start-up hook and a variable.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cotenant.checkpoint.talk.protocol import ENV_MEMORY_MIB
from cotenant.gradaccum.launch import STARTUP
from hwtests.device import Device
from hwtests.measuring import Measure

pytestmark = pytest.mark.gpu

LIMIT_MIB = 2048
BLOCK_MIB = 64
SCRIPT = str(Path(__file__).parent / "taking.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
LAUNCHES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "a single process": ((), {}),
    "a worker with its rank": ((), {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}),
    "torchrun": (TORCHRUN, {}),
    "settings of its own for the allocator": ((), {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "another allocator": ((), {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
}


def taken(launcher: tuple[str, ...], env: dict[str, str], *options: str) -> dict[str, Any]:
    """What the script says, with all devices of `env` visible."""
    path = os.pathsep.join([str(STARTUP), *(each for each in sys.path if each)])
    ran = subprocess.run(
        [sys.executable, *launcher, SCRIPT, "--most-mib", str(2 * LIMIT_MIB), *options],
        env={**os.environ, "PYTHONPATH": path, ENV_MEMORY_MIB: str(LIMIT_MIB), **env},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    assert "not held to its part" not in ran.stderr, ran.stderr
    said = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(said[-1])
    return found


@pytest.mark.parametrize(("launcher", "env"), LAUNCHES.values(), ids=LAUNCHES.keys())
def test_a_plain_script_is_refused_beyond_its_part(
    cuda: Device,
    launcher: tuple[str, ...],
    env: dict[str, str],
    measured: Measure,
    request: pytest.FixtureRequest,
) -> None:
    found = taken(launcher, {"CUDA_VISIBLE_DEVICES": cuda.uuid, **env})
    measured(f"taken of {LIMIT_MIB} MiB by {request.node.callspec.id}", found["held_mib"], "MiB")
    assert "out of memory" in found["error"].lower(), found
    assert LIMIT_MIB - 2 * BLOCK_MIB <= found["held_mib"] <= LIMIT_MIB


def test_a_process_that_sees_two_gpus_is_limited_on_the_one_it_uses_and_does_not_open_the_other(
    cuda: Device, measured: Measure
) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs that this process sees")
    found = taken((), {}, "--device", "1")
    measured("GPUs with a context, of two that are seen and one that is used", len(found["open"]))
    assert found["open"] == [1]
    assert "out of memory" in found["error"].lower()
    assert found["held_mib"] <= LIMIT_MIB
