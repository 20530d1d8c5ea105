"""Which devices a host offers. What NVML says of GPUs is in test_nvml.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cotenant.agent.host import devices
from cotenant.agent.host.devices import BadDevices, DeviceChoice, NotThisHost
from cotenant.agent.host.gpu_offers import NO_INSTANCES
from cotenant.controller.domain import HostId
from cotenant.profiler.driver.facts import DriverFacts, GpuFacts
from cotenant.profiler.driver.probe_client import gpus_on_the_bus

HOST = HostId("h")

CHOICES = {
    "auto": DeviceChoice(kind="auto"),
    "cpu:2": DeviceChoice(kind="cpu", slots=2),
    "cuda": DeviceChoice(kind="cuda"),
    "cuda:0,2": DeviceChoice(kind="cuda", picked=("0", "2")),
    "cuda:GPU-1a2b": DeviceChoice(kind="cuda", picked=("GPU-1a2b",)),
}


@pytest.mark.parametrize("text", CHOICES)
def test_a_choice(text: str) -> None:
    assert devices.parse(text) == CHOICES[text]


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu:0", "cpu:-1", "cpu:x", "cpu:9999", "cuda:", "auto:1", "gpu", "cuda:0,", "cpu:٣"]
)
def test_a_choice_that_makes_no_sense(text: str) -> None:
    with pytest.raises(BadDevices, match="is not one of auto, cpu:N"):
        devices.parse(text)


def test_slots_divide_the_cores() -> None:
    slots = devices.cpu_slots(3, HOST, (0, 1, 2, 3, 6, 7, 8, 9), 500, False)
    assert [slot.cores for slot in slots] == [(0, 1), (2, 3, 6), (7, 8, 9)]
    assert [slot.device_id for slot in slots] == ["h/cpu0", "h/cpu1", "h/cpu2"]
    assert {slot.max_tenants for slot in slots} == {2}


def test_more_slots_than_cores_only_on_demand() -> None:
    with pytest.raises(NotThisHost, match="ask for at most 2, or add --oversubscribe"):
        devices.cpu_slots(3, HOST, (4, 5), 500, False)
    assert [s.cores for s in devices.cpu_slots(3, HOST, (4, 5), 500, True)] == [(4,), (5,), (4,)]


def found(facts: DriverFacts, text: str, **changes: Any) -> devices.Inventory:
    return devices.find(devices.parse(text), HOST, range(16), 16_000, driver=lambda: facts, **changes)


def test_without_a_gpu_auto_offers_slots_and_says_why() -> None:
    inventory = found(DriverFacts(problem="no NVIDIA driver library"), "auto")
    assert [(d.kind, len(d.cores), d.memory_mib) for d in inventory.devices] == [("cpu", 2, 2000)] * 8
    assert inventory.note == "no CUDA devices: no NVIDIA driver library; 8 CPU slots stand in for them"


BUS = ("0000:01:00.0", "0000:02:00.0")


@pytest.mark.parametrize(
    ("text", "on_the_bus", "refused"),
    [("auto", BUS, True), ("auto", None, False), ("auto", (), False), ("cpu:2", BUS, False)],
)
def test_in_a_cluster_slots_do_not_stand_in_for_gpus_that_are_there(
    text: str, on_the_bus: tuple[str, ...] | None, refused: bool
) -> None:
    facts = DriverFacts(problem="the NVIDIA driver is not loaded")
    assert found(facts, text).devices, "on somebody's own machine they do"
    if not refused:
        assert found(facts, text, stand_in=False, bus=lambda: on_the_bus).devices
        return
    with pytest.raises(NotThisHost, match=r"2 NVIDIA GPUs are on the bus, but .* not loaded.*`cotenant doc"):
        found(facts, text, stand_in=False, bus=lambda: on_the_bus)


def test_gpus_are_seen_on_the_bus_without_a_driver(tmp_path: Path) -> None:
    assert gpus_on_the_bus(tmp_path) is None
    kinds = {"0": ("0x10de", "0x030200"), "1": ("0x10de", "0x040300"), "2": ("0x8086", "0x030000")}
    for name, (vendor, kind) in kinds.items():
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
    assert gpus_on_the_bus(tmp_path) == ("0",), "neither its sound nor the board's own graphics"


def test_slots_asked_for_need_no_explanation() -> None:
    inventory = found(DriverFacts(), "cpu:4", slot_memory_mib=123)
    assert inventory.note == ""
    assert {d.memory_mib for d in inventory.devices} == {123}


def test_cuda_where_there_is_none_is_refused() -> None:
    with pytest.raises(NotThisHost, match="no CUDA devices: the driver reports none"):
        found(DriverFacts(), "cuda")


def gpu(index: int, uuid: str, **changes: Any) -> GpuFacts:
    plain: dict[str, Any] = {"name": "NVIDIA H200", "memory_mib": 143_000, "taken_mib": 600}
    return GpuFacts(index=index, uuid=uuid, **{**plain, **changes})


GPUS = (
    gpu(0, "GPU-1a2b3c4d-0000-0000-0000-000000000000"),
    gpu(1, "GPU-1a2b3c4e-0000-0000-0000-000000000000"),
    gpu(2, "GPU-99999999-0000-0000-0000-000000000000", mig=True),
)


def test_gpus_are_named_after_their_uuids() -> None:
    inventory = found(DriverFacts(gpus=GPUS), "auto")
    assert [d.device_id for d in inventory.devices] == ["h/gpu-1a2b3c4d", "h/gpu-1a2b3c4e", "h/gpu-99999999"]
    first, _, mig = inventory.devices
    assert (first.type, first.local, first.usable_mib) == ("NVIDIA-H200", GPUS[0].uuid, 142_400)
    assert (mig.healthy, mig.note) == (False, NO_INSTANCES)


def test_some_gpus_by_index_or_uuid() -> None:
    facts = DriverFacts(gpus=GPUS)
    assert [d.local for d in found(facts, "cuda:1").devices] == [GPUS[1].uuid]
    assert [d.local for d in found(facts, f"cuda:{GPUS[0].uuid}").devices] == [GPUS[0].uuid]
    with pytest.raises(NotThisHost, match="no CUDA device 7 here; there are 0 to 2"):
        found(facts, "cuda:0,7")


def test_one_machine_plays_two_hosts_with_slots_of_their_own() -> None:
    halves = [
        devices.find(devices.parse(text), HostId(host), (4, 5, 6, 7), 4096, driver=DriverFacts).devices
        for host, text in (("a", "cpu:0-1/4"), ("b", "cpu:2-3/4"))
    ]
    assert [[each.device_id for each in half] for half in halves] == [
        ["a/cpu0", "a/cpu1"],
        ["b/cpu2", "b/cpu3"],
    ]
    assert [[each.memory_mib for each in half] for half in halves] == [[1024, 1024]] * 2
    first, second = ({name for each in half for name in devices.lock_names(each)} for half in halves)
    assert (first, second) == ({"core-4", "core-5"}, {"core-6", "core-7"})


@pytest.mark.parametrize("text", ["cpu:2-1/4", "cpu:0-4/4", "cpu:1/4", "cpu:0-1/", "cpu:0-1/5000"])
def test_slots_that_are_none_of_those_are_refused(text: str) -> None:
    with pytest.raises(BadDevices, match=r"slots 0 and 1 of 4"):
        devices.parse(text)


def test_lock_names_mean_the_same_to_every_agent() -> None:
    [slot] = devices.cpu_slots(1, HOST, (3, 4), 500, False)
    assert devices.lock_names(slot) == ("core-3", "core-4")
    [card] = devices.cuda_devices(GPUS[:1], HostId("other"))
    assert devices.lock_names(card) == (GPUS[0].uuid,)
