"""What newer kernels add: device memory that the kernel limits.

Rule: a limit is believed when a load meets it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.mps import device_memory
from hwtests import host
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.host import skip_if
from hwtests.measuring import Measure
from hwtests.private_mps import PrivateMps

pytestmark = pytest.mark.gpu

LIMIT_MIB = 4096
CONTEXT_MIB_MAX = 1536
GROUP = Path(f"/sys/fs/cgroup/cotenant-hwtest-{os.getpid()}")
REMOVE_S = 10.0


@pytest.fixture
def region() -> Iterator[str]:
    """The GPU's region, and a group in which it can be limited; the tree is left as it was."""
    skip_if(host.lacks_device_limit())
    control = GROUP.parent / "cgroup.subtree_control"
    was_on = device_memory.CONTROLLER in control.read_text().split()
    control.write_text(f"+{device_memory.CONTROLLER}")
    GROUP.mkdir()
    try:
        yield host.memory_region()
    finally:
        deadline_s = time.monotonic() + REMOVE_S
        while GROUP.exists() and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):  # The kernel takes a moment to let go of an exited process.
                GROUP.rmdir()
            time.sleep(0.05)
        if not was_on:
            with contextlib.suppress(OSError):
                control.write_text(f"-{device_memory.CONTROLLER}")


@pytest.mark.parametrize("client", [False, True], ids=["plain", "mps"])
def test_the_kernel_s_limit_on_device_memory_is_met(
    cuda: Device, region: str, client: bool, measured: Measure
) -> None:
    """By a process that MPS knows nothing of, and by a client of a daemon outside the group."""
    (GROUP / device_memory.LIMIT).write_text(device_memory.line_for(region, LIMIT_MIB))
    text = (GROUP / device_memory.LIMIT).read_text()
    measured("dmem.max", text)
    assert device_memory.not_in_force(text, (region,), LIMIT_MIB) == ()
    with contextlib.ExitStack() as stack:
        daemon: PrivateMps | None = None
        if client:
            skip_if(host.lacks_mps())
            daemon = stack.enter_context(PrivateMps(cuda.uuid))
        env = daemon.environment() if daemon is not None else {}
        load = stack.enter_context(Busy("hold", cuda, env=env))
        (GROUP / "cgroup.procs").write_text(str(load.pid))  # It imports torch for seconds before CUDA starts.
        shown = load.ready()
        held = load.until(lambda said: "held_mib" in said, timeout_s=60.0)
        if daemon is not None:
            daemon.await_clients(load.pid)
        current = (GROUP / "dmem.current").read_text()
    measured("taken below the limit", held["held_mib"], "MiB")
    measured("how the allocation failed", held["error"] or "it did not")
    measured("mem_get_info, total", shown.get("total_mib"), "MiB", otherwise="not said")
    measured("dmem.current at the limit", current)
    assert "out of memory" in held["error"].lower()
    assert LIMIT_MIB - CONTEXT_MIB_MAX <= held["held_mib"] <= LIMIT_MIB
