"""The inventory of GPUs, asked of a library that says what the test wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotenant.agent import devices
from cotenant.controller.domain.ids import HostId
from tests.agent.mock_gpus import ONE, TWO, MockGpus

HOST = HostId("h")


def test_each_gpu_is_described_by_its_uuid(gpus: MockGpus) -> None:
    gpus.say("gpu 1 capability 8.0", "gpu 1 mode 3", "gpu 1 persistence 0", "gpu 2 uuid GPU-3", "gpu 2 rc 15")
    probe = devices.ask_nvml()
    assert (probe.problem, probe.driver) == ("", "580.0-mock")
    one, two, lost = probe.gpus
    assert (one.uuid, one.name, one.memory_mib) == (ONE, "NVIDIA H200 (mock)", 81920)
    assert (one.capability, one.compute_mode, one.persistent, one.problem) == ("9.0", 0, True, "")
    assert (two.uuid, two.capability, two.compute_mode, two.persistent) == (TWO, "8.0", 3, False)
    assert (lost.code, lost.problem) == (15, "a GPU has fallen off the bus: reboot the host")
    offered = devices.cuda_devices(probe.gpus, HOST)
    assert [(d.device_id, d.healthy, d.state, d.max_tenants) for d in offered] == [
        ("h/gpu-1a2b3c", True, "ok", 2),
        ("h/gpu-2a2b3c", True, "ok", 1),
        ("h/gpu-2", False, "lost", 2),
    ]
    assert offered[0].type == "NVIDIA-H200-mock", "what is recorded of a mock says so"


def test_a_gpu_in_mig_mode_is_listed_with_its_instances_and_offered_in_no_part(gpus: MockGpus) -> None:
    gpus.say("gpu 1 mig 1", "gpu 1 instance MIG-77aa NVIDIA H200 MIG 1g.18gb", "gpu 1 instance MIG-78aa half")
    one, parent, *parts = devices.cuda_devices(devices.ask_nvml().gpus, HOST)
    assert one.healthy
    assert not parent.healthy
    assert "MIG mode" in parent.note
    assert [(p.local, p.type, p.healthy) for p in parts] == [
        ("MIG-77aa", "NVIDIA-H200-MIG-1g.18gb", False),
        ("MIG-78aa", "half", False),
    ]
    assert parts[0].note == "a MIG instance of gpu-2a2b3c: cotenant offers whole GPUs only"


def test_the_reserve_is_measured_where_nobody_computes_and_else_the_drivers(gpus: MockGpus) -> None:
    me = os.getpid()
    gpus.say("gpu 0 used 640", "gpu 1 used 9000", f"process 1 {me} 8000 C")
    gpus.say("gpu 2 uuid GPU-3", "gpu 2 used 1400", f"process 2 {me} 700 G")
    gpus.say("gpu 3 uuid GPU-4", "gpu 3 used 30000")
    idle, busy, drawing, held = devices.ask_nvml().gpus
    assert (idle.reserve_mib, idle.is_busy) == (640, False)
    assert (busy.reserve_mib, busy.is_busy) == (600, True)
    assert (drawing.reserve_mib, drawing.is_busy) == (1400, False), "a display stays where it is"
    assert held.reserve_mib == 600, "what somebody unseen holds is not the driver's"


def test_nobody_computes_on_a_gpu_whose_mode_forbids_it(gpus: MockGpus) -> None:
    gpus.say("gpu 0 mode 2")
    one, _ = devices.cuda_devices(devices.ask_nvml().gpus, HOST)
    assert not one.healthy
    assert "nvidia-smi -c DEFAULT" in one.note


def test_an_old_driver_lacks_much_and_does(
    gpus: MockGpus, old_nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_nvml_library))
    gpus.say(f"process 1 {os.getpid()} 8000 C", "gpu 1 used 9000")
    one, busy = devices.ask_nvml().gpus
    assert (one.uuid, one.reserve_mib, one.mig) == (ONE, 600, False)
    assert busy.reserve_mib == 0, "nobody knows it"


@pytest.mark.parametrize(("code", "says"), [(4, "check the permissions"), (9, "`modprobe nvidia`")])
def test_a_driver_that_does_not_work_is_a_reason_with_what_to_do(
    gpus: MockGpus, code: int, says: str
) -> None:
    gpus.say(f"init {code}")
    probe = devices.ask_nvml()
    assert probe.gpus == ()
    assert says in probe.problem


def test_one_call_that_never_comes_back_is_a_reason(gpus: MockGpus) -> None:
    gpus.say("hang nvmlDeviceGetName 1")
    assert "did not answer within 1 s" in devices.ask_nvml(timeout_s=1.0).problem
