"""NVIDIA's `cuda-checkpoint`: whether a process can be put off the GPU without its help. Recorded for later.

Rule: nothing of ours depends on it. A process that was restored is ended by asking, never killed: that has
hung hosts.
"""

from __future__ import annotations

import subprocess

import pytest

from hwtests import host
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.measuring import Measure
from hwtests.private_mps import PrivateMps
from hwtests.readings import used_mib

pytestmark = pytest.mark.gpu

TIMEOUT_S = 120.0
TAKEN_MIB = 2048


def toggle(pid: int) -> subprocess.CompletedProcess[str]:
    words = ["cuda-checkpoint", "--toggle", "--pid", str(pid)]
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_a_plain_process_leaves_and_comes_back(cuda: Device, seconds: float, measured: Measure) -> None:
    host.skip_if(host.lacks_cuda_checkpoint())
    with Busy("matmul", cuda) as load:
        load.ready()
        before, running = load.rate(seconds), used_mib(cuda)
        off = toggle(load.pid)
        suspended = used_mib(cuda)
        measured("suspend", off.returncode, "exit code", off.stderr.strip())
        measured("memory given back", running - suspended, "MiB")
        on = toggle(load.pid)
        measured("resume", on.returncode, "exit code", on.stderr.strip())
        after = load.rate(seconds)
        measured("rate after over rate before", after / before)
        assert (off.returncode, on.returncode) == (0, 0)
        assert suspended < running and after > 0


def test_a_client_of_mps(cuda: Device, mps: PrivateMps, measured: Measure) -> None:
    host.skip_if(host.lacks_cuda_checkpoint())
    with Busy("hold", cuda, "--most-mib", str(TAKEN_MIB), env=mps.environment()) as client:
        client.until(lambda said: "held_mib" in said, timeout_s=60.0)
        off = toggle(client.pid)
        measured("suspend of a client of MPS", off.returncode, "exit code", (off.stdout + off.stderr).strip())
        if off.returncode == 0:
            on = toggle(client.pid)
            measured("resume of a client of MPS", on.returncode, "exit code", (on.stdout + on.stderr).strip())
