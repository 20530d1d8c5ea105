"""What newer drivers and kernels add: multiprocessors of one's own, and device memory that the kernel limits.

Rule: a limit is believed when a load meets it. A partition counts when its client shows no more
multiprocessors than it has, and computes as fast beside a neighbour as it does alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.mps import commands, device_memory
from cotenant.mps.dividing import divide
from cotenant.mps.environment import ClientLimits
from cotenant.mps.partitions import in_words
from hwtests import host
from hwtests.busy import Busy, LoadFailed
from hwtests.device import Device
from hwtests.host import skip_if
from hwtests.private_mps import PrivateMps
from hwtests.recording import Measure

pytestmark = pytest.mark.gpu

PARTS = 2
SHARE = (0.30, 0.75)
"""Bounds of a half's share of the whole device's rate: clocks rise when fewer multiprocessors work."""
BESIDE_MIN = 0.85
"""Of its rate alone: memory and power are still shared."""
LIMIT_MIB = 4096
CONTEXT_MIB_MAX = 1536
GROUP = Path(f"/sys/fs/cgroup/cotenant-hwtest-{os.getpid()}")
REMOVE_S = 10.0


@pytest.fixture
def divided(cuda: Device) -> Iterator[PrivateMps]:
    skip_if(host.lacks_partitions())
    with PrivateMps(cuda.uuid, partitioned=True) as daemon:
        yield daemon


def test_two_partitions_confine_two_clients_and_keep_them_apart(
    cuda: Device, divided: PrivateMps, seconds: float, measured: Measure
) -> None:
    """FP32 without tensor cores: bound by multiprocessors, and least by memory."""
    with Busy("fp32", cuda) as load:  # No client of any daemon.
        whole_said = load.ready()
        whole = load.rate(seconds)
    measured("the whole device, without MPS", whole, "TFLOP/s")
    parts = divide(divided.channel, (cuda.uuid,), PARTS, idle=True)[cuda.uuid]
    measured("lspart after dividing", divided.ask("lspart"))
    measured("partitions", in_words(parts))
    envs = [divided.environment(ClientLimits(partition=part.name)) for part in parts]
    with Busy("fp32", cuda, env=envs[0]) as first:
        shown = [first.ready().get("multiprocessors")]
        divided.await_clients(first.pid)
        alone = first.rate(seconds)
        with Busy("fp32", cuda, env=envs[1]) as second:
            shown.append(second.ready().get("multiprocessors"))
            divided.await_clients(first.pid, second.pid)
            beside = (first.rate(seconds), second.rate(seconds))
            table = commands.partition_table(divided.channel, (cuda.uuid,))[cuda.uuid]
            measured("lspart with two clients", divided.ask("lspart"))
            refused = commands.remove_partition(divided.channel, cuda.uuid, parts[0].identifier)
            measured("sm_partition rm with a client on it", refused or "(empty)")
    measured("multiprocessors shown: whole", whole_said.get("multiprocessors"), otherwise="not said")
    measured("multiprocessors shown: parts", str(shown))
    measured("the first alone on its partition", alone, "TFLOP/s")
    measured("both at once", f"{beside[0]:.2f} and {beside[1]:.2f}", "TFLOP/s")
    assert shown == [part.multiprocessors for part in parts]
    assert SHARE[0] < alone / whole < SHARE[1], (alone, whole)
    assert beside[0] > BESIDE_MIN * alone, "a neighbour on other multiprocessors takes none of its own"
    assert beside[1] > 0
    assert all(part.in_use for part in table.partitions)


def test_nobody_is_a_client_without_a_partition_and_too_large_a_one_is_refused(
    cuda: Device, divided: PrivateMps, measured: Measure
) -> None:
    (layout,) = commands.partition_table(divided.channel, (cuda.uuid,)).values()
    answer = divided.ask(f"sm_partition add {cuda.uuid} {layout.free_chunks + 1}")
    measured("sm_partition add with too many chunks", answer or "(empty)")
    assert commands.partition_table(divided.channel, (cuda.uuid,))[cuda.uuid].partitions == ()
    divide(divided.channel, (cuda.uuid,), PARTS, idle=True)
    with Busy("fp32", cuda, env=divided.environment()) as load:
        try:
            said = str(load.ready().get("error", ""))
        except LoadFailed as failed:
            said = str(failed)
        measured("a client without a partition", said or "runs")
    assert said, "the product relies on it that such a client does not run on somebody's multiprocessors"


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
