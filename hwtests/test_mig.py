"""A MIG instance as a device: what NVML says of it, and that a process given its UUID sees nothing else.

Rule: the mode is never changed here; without an instance the tests skip.
"""

from __future__ import annotations

import os

import pytest

from cotenant.agent.host.devices import cuda_devices
from cotenant.controller.domain import HostId
from cotenant.profiler.driver.facts import GpuFacts
from cotenant.profiler.driver.probe_client import driver_facts
from hwtests import host
from hwtests.busy import Busy
from hwtests.device import Device
from hwtests.host import skip_if
from hwtests.measuring import Measure

pytestmark = pytest.mark.gpu

TAKEN_MIB = 1024


@pytest.fixture
def divided() -> GpuFacts:
    """A GPU that has instances."""
    found = [gpu for gpu in host.driver().gpus if gpu.instances]
    if not found:
        pytest.skip("no MIG instance here; this suite makes none")
    skip_if(host.lacks_torch())
    return found[0]


def test_instances_are_devices_and_their_gpu_is_none(divided: GpuFacts, measured: Measure) -> None:
    parent, *parts = cuda_devices((divided,), HostId("h"))
    measured("MIG instances", ", ".join(f"{part.type} ({part.memory_mib} MiB)" for part in parts))
    assert not parent.healthy
    assert all(part.healthy and part.max_tenants == 1 and part.memory_mib > 1 for part in parts)
    assert all(part.type.startswith("MIG-") and "gb" in part.type for part in parts)


def test_a_process_on_an_instance_is_seen_there_and_nowhere_else(
    divided: GpuFacts, measured: Measure
) -> None:
    mine, *others = divided.instances
    device = Device(kind="cuda", uuid=mine.uuid, name=mine.name, cores=tuple(os.sched_getaffinity(0)))
    with Busy("hold", device, "--most-mib", str(TAKEN_MIB)) as load:
        load.until(lambda said: "held_mib" in said, timeout_s=60.0)
        gpu = next(each for each in driver_facts().gpus if each.uuid == divided.uuid)
        now = {part.uuid: part for part in gpu.instances}
        taken_mib = (now[mine.uuid].taken_mib or 0) - (mine.taken_mib or 0)
        measured("memory of a load of 1024 MiB on an instance", taken_mib, "MiB")
        assert taken_mib >= TAKEN_MIB
        if load.process.pid not in {each.pid for each in now[mine.uuid].processes}:
            pytest.skip("NVML shows other process ids here: a container without the host's process namespace")
        for other in others:
            assert load.process.pid not in {each.pid for each in now[other.uuid].processes}
