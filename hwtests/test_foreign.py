"""Who is on the GPU, and memory that nobody holds: seen as `doctor` sees them."""

from __future__ import annotations

import time

import pytest

from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.gpu_checks import held_mib, tenants
from cotenant.controller.system import settings
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts
from cotenant.profiler.driver.probe_client import driver_facts
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.measuring import Measure
from hwtests.private_mps import PrivateMps
from hwtests.readings import used_mib

pytestmark = pytest.mark.gpu

TAKEN_MIB = 2048
SLACK_MIB = 64.0
TIMEOUT_S = 60.0


def now(device: Device) -> tuple[DriverFacts, GpuFacts]:
    facts = driver_facts(diagnostics=True)
    return facts, next(gpu for gpu in facts.gpus if gpu.uuid == device.uuid)


def said_of_tenants(facts: DriverFacts) -> str:
    loaded = settings.load({}, files=[], environ={})
    check = tenants(Facts(loaded, driver=facts))
    return "" if check is None else f"{check.verdict}: {check.found}"


def test_a_foreign_process_is_seen_and_named(cuda: Device, measured: Measure) -> None:
    with Busy("hold", cuda, "--most-mib", str(TAKEN_MIB)) as stranger:
        stranger.until(lambda said: "held_mib" in said, timeout_s=60.0)
        facts, gpu = now(cuda)
        found = {process.pid: process for process in gpu.processes}
        measured("doctor about a foreign process", said_of_tenants(facts))
        if stranger.pid not in found:
            pytest.skip("NVML shows other process ids here: a container without the host's process namespace")
        seen = found[stranger.pid]
        measured("its memory by NVML", seen.memory_mib, "MiB", otherwise="NVML does not say")
        assert not seen.ours and "hwtests.loads" in seen.command
        assert seen.memory_mib is None or seen.memory_mib >= TAKEN_MIB
    facts, gpu = now(cuda)
    assert stranger.pid not in {process.pid for process in gpu.processes}


def test_a_client_of_mps_is_seen(cuda: Device, mps: PrivateMps, measured: Measure) -> None:
    with Busy("hold", cuda, "--most-mib", str(TAKEN_MIB), env=mps.environment()) as client:
        client.until(lambda said: "held_mib" in said, timeout_s=60.0)
        _, gpu = now(cuda)
        words = "; ".join(f"{p.pid}: {p.memory_mib} MiB, {p.command[:60]}" for p in gpu.processes)
        measured("processes that NVML shows under MPS", words or "none")
        measured("the client itself is among them", client.pid in {p.pid for p in gpu.processes})
        measured("the server is among them", bool({p.pid for p in gpu.processes} & set(mps.servers())))


def test_memory_after_a_process_was_killed(cuda: Device, measured: Measure) -> None:
    """How long a GPU is not free although nobody is on it: a device is given out only after that."""
    _, idle = now(cuda)
    measured("held by nobody while idle", held_mib(idle), "MiB", otherwise="NVML does not say")
    before = used_mib(cuda)
    with Busy("hold", cuda, "--most-mib", str(TAKEN_MIB)) as victim:
        victim.until(lambda said: "held_mib" in said, timeout_s=60.0)
        assert used_mib(cuda) - before >= TAKEN_MIB
        _, busy = now(cuda)
        measured(
            "held by nobody while one process has memory",
            held_mib(busy),
            "MiB",
            otherwise="NVML does not say",
        )
        victim.kill()
        killed_s = time.monotonic()
        while (after := used_mib(cuda)) > before + SLACK_MIB and time.monotonic() - killed_s < TIMEOUT_S:
            time.sleep(0.02)
        measured("memory free again after SIGKILL", time.monotonic() - killed_s, "s")
        assert after <= before + SLACK_MIB, f"{after - before:.0f} MiB are still held after {TIMEOUT_S:.0f} s"
