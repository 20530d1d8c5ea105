"""The inventory of GPUs, asked of a library that says what the test wants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from cotenant.agent.host import devices
from cotenant.agent.host.devices import DeviceChoice, Inventory
from cotenant.controller.domain import HostId
from tests.agent.mock_gpus import ONE, TWO, MockGpus

HOST = HostId("h")


def inventory(*bus: str) -> Inventory:
    return devices.find(DeviceChoice(kind="auto"), HOST, range(2), 16_000, bus=lambda: bus)


def test_each_gpu_is_offered_by_its_uuid_and_one_that_is_lost_is_listed(gpus: MockGpus) -> None:
    gpus.say("gpu 1 mode 3", "gpu 2 uuid GPU-3", "gpu 2 rc 15")
    offered = inventory().devices
    assert [(d.device_id, d.local, d.healthy, d.state, d.max_tenants) for d in offered] == [
        ("h/gpu-1a2b3c", ONE, True, "ok", 2),
        ("h/gpu-2a2b3c", TWO, True, "ok", 1),
        ("h/gpu-2", "lost-2", False, "lost", 2),
    ]
    assert offered[2].note == "a GPU has fallen off the bus: reboot the host"
    assert offered[0].type == "NVIDIA-H200-mock", "what is recorded of a mock says so"


MIG = ("gpu 1 mig 1", "gpu 1 instance MIG-77aa NVIDIA H200 MIG 1g.18gb", "gpu 1 instance MIG-78aa half")


def test_mig_instances_are_devices_for_one_job_each_and_their_gpu_is_none(gpus: MockGpus) -> None:
    gpus.say(*MIG)
    one, parent, *parts = inventory().devices
    assert one.healthy
    assert not parent.healthy
    assert parent.note == "divided into 2 MIG instances, for jobs with --gpu-type MIG-1g.18gb, MIG-half"
    assert [(p.device_id, p.local, p.type, p.memory_mib, p.reserve_mib) for p in parts] == [
        ("h/gpu-2a2b3c-mig-77aa", "MIG-77aa", "MIG-1g.18gb", 9984, 20),
        ("h/gpu-2a2b3c-mig-78aa", "MIG-78aa", "MIG-half", 9984, 20),
    ]
    assert all((p.healthy, p.max_tenants, p.divides, p.parent) == (True, 1, False, TWO) for p in parts)


@pytest.mark.parametrize(
    ("picked", "names"),
    [(TWO, ["gpu-2a2b3c", "mig-77aa", "mig-78aa"]), ("MIG-78aa", ["gpu-2a2b3c", "mig-78aa"])],
)
def test_instances_are_picked_by_their_gpu_or_one_by_one(
    gpus: MockGpus, picked: str, names: list[str]
) -> None:
    gpus.say(*MIG)
    found = devices.find(devices.parse(f"cuda:{picked}"), HOST, range(2), 16_000).devices
    assert [device.device_id.removeprefix("h/").removeprefix("gpu-2a2b3c-") for device in found] == names


def test_a_gpu_in_mig_mode_without_instances_says_what_to_do(gpus: MockGpus) -> None:
    gpus.say("gpu 1 mig 1")
    _, empty = inventory().devices
    assert not empty.healthy
    assert "nvidia-smi mig -cgi" in empty.note
    assert "restart the agent" in empty.note


def test_the_reserve_is_measured_where_nobody_computes_and_else_the_drivers(gpus: MockGpus) -> None:
    me = os.getpid()
    gpus.say("gpu 0 used 640", "gpu 1 used 9000", f"process 1 {me} 8000 C")
    gpus.say("gpu 2 uuid GPU-3", "gpu 2 used 1400", f"process 2 {me} 700 G")
    gpus.say("gpu 3 uuid GPU-4", "gpu 3 used 30000")
    found = inventory()
    idle, busy, drawing, held = (device.reserve_mib for device in found.devices)
    assert found.busy == (TWO,)
    assert (idle, busy) == (640, 600)
    assert drawing == 1400, "a display stays where it is"
    assert held == 600, "what somebody unseen holds is not the driver's"


def test_somebody_may_compute_where_the_driver_does_not_say(gpus: MockGpus) -> None:
    gpus.say("gpu 1 used 9000", "fail nvmlDeviceGetComputeRunningProcesses_v3 3")
    found = inventory()
    assert found.busy == (ONE, TWO)
    assert [device.reserve_mib for device in found.devices] == [600, 600]


def test_who_draws_may_stay_unsaid(gpus: MockGpus) -> None:
    gpus.say("gpu 0 used 700", "fail nvmlDeviceGetGraphicsRunningProcesses_v3 3")
    found = inventory()
    assert found.busy == ()
    assert found.devices[0].reserve_mib == 600, "the driver's own number: some of the rest may be a display's"


def test_nobody_computes_on_a_gpu_whose_mode_forbids_it(gpus: MockGpus) -> None:
    gpus.say("gpu 0 mode 2")
    one, _ = inventory().devices
    assert not one.healthy
    assert "nvidia-smi -c DEFAULT" in one.note


def test_an_old_driver_lacks_much_and_does(
    gpus: MockGpus, old_nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_nvml_library))
    gpus.say(f"process 1 {os.getpid()} 8000 C", "gpu 1 used 9000")
    one, busy = inventory().devices
    assert (one.local, one.healthy, one.reserve_mib) == (ONE, True, 600)
    assert busy.reserve_mib == 0, "nobody knows it"


def test_a_driver_that_does_not_work_is_a_reason_with_what_to_do(gpus: MockGpus) -> None:
    gpus.say("init 9")
    found = inventory()
    assert [device.kind for device in found.devices] == ["cpu", "cpu"]
    assert "`modprobe nvidia`; 2 CPU slots stand in" in found.note


# --- Gaps ------------------------------------------------------------------------------------------


class Offered(NamedTuple):
    """What must be offered of the second of two GPUs."""

    facts: tuple[str, ...]
    healthy: bool = True
    tenants: int = 2
    memory_mib: int = 81_920
    note: str = ""
    """Of the device: why it is not offered, or not shared."""
    said: str = ""
    """In the agent's log, of GPU 1."""


SHARED = "its memory is the host's"
GAPS = {
    "nothing is missing": Offered(("gpu 1 gpm 1",)),
    "GB10: no memory of its own": Offered(
        ("fail nvmlDeviceGetMemoryInfo 3",), tenants=1, memory_mib=16_000, note=SHARED, said=SHARED
    ),
    "Jetson: no memory of its own, and no lists": Offered(
        (
            "fail nvmlDeviceGetMemoryInfo 3",
            "fail nvmlDeviceGetComputeRunningProcesses_v3 3",
            "fail nvmlDeviceGetGraphicsRunningProcesses_v3 3",
        ),
        tenants=1, memory_mib=16_000, note=SHARED, said=SHARED,
    ),
    "vGPU: no list of who draws": Offered(
        ("fail nvmlDeviceGetGraphicsRunningProcesses_v3 3",),
        said="processes that are drawing on it: NVML error 3",
    ),
    "vGPU: the UUID of another": Offered(
        (f"gpu 1 uuid {ONE}",), healthy=False, memory_mib=1, note=f"it has the UUID of GPU 0, {ONE}"
    ),
    "no energy counter": Offered(("fail nvmlDeviceGetTotalEnergyConsumption 3",)),
    "GH200: pages of the host in its memory": Offered(("gpu 1 used 9000",)),
    "MIG on, without instances": Offered(("gpu 1 mig 1",), healthy=False, note="nvidia-smi mig -cgi"),
    "MIG on, whose memory we may not ask": Offered(
        ("gpu 1 mig 1", "gpu 1 instance MIG-77aa half"), healthy=False, note="divided into 1 MIG instances"
    ),
    "lost": Offered(("gpu 1 rc 15",), healthy=False, memory_mib=1, note="fallen off the bus: reboot"),
}  # fmt: skip


@pytest.mark.parametrize("name", GAPS)
def test_what_is_offered_and_said_where_the_driver_says_less(name: str, gpus: MockGpus) -> None:
    gap = GAPS[name]
    gpus.say(*gap.facts)
    found = inventory()
    _, device, *_ = found.devices
    assert (device.healthy, device.memory_mib) == (gap.healthy, gap.memory_mib)
    assert not gap.healthy or (device.max_tenants, device.state) == (gap.tenants, "ok")
    assert gap.note in (device.note or device.sharing_note)
    assert bool(gap.note) == bool(device.note or device.sharing_note)
    assert gap.said in found.note and bool(gap.said) == bool(found.note)


@pytest.mark.parametrize(
    ("bus", "facts", "names"),
    [
        ((1, 2, 3), (), ["0000:03:00.0"]),
        ((1, 2), (), []),
        ((1, 2, 3), ("gpu 1 rc 15",), ["0000:02:00.0 or 0000:03:00.0"]),
        ((7, 8, 9), (), []),
        ((), (), []),
    ],
    ids=("one more", "as many", "which one", "another host's", "no bus"),
)
def test_gpus_that_only_the_bus_shows_are_listed_with_the_reason(
    bus: tuple[int, ...], facts: tuple[str, ...], names: list[str], gpus: MockGpus
) -> None:
    gpus.say(*facts)
    _, _, *more = inventory(*(f"0000:0{number}:00.0" for number in bus)).devices
    assert [(each.healthy, each.state, each.local) for each in more] == [(False, "lost", "lost-2")] * len(
        names
    )
    assert [each.note.partition("), ")[0] for each in more] == [f"on the bus ({name}" for name in names]


def test_a_gpu_without_memory_of_its_own_is_watched_as_one_that_answers(
    gpus: MockGpus, tmp_path: Path
) -> None:
    gpus.say("fail nvmlDeviceGetMemoryInfo 3", f"process 0 {os.getpid()} 300 C")
    words = [
        sys.executable,
        "-m",
        "cotenant.agent.gpus.nvml_watch",
        "--gpu",
        ONE,
        "--attempts",
        str(tmp_path),
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        found = next(
            line for line in map(json.loads, watcher.stdout) if "problem" in line or "used_mib" in line
        )
        watcher.kill()
    assert (found.get("code", 0), found.get("used_mib")) == (0, 300)
    assert [each["pid"] for each in found["processes"]] == [os.getpid()]
