"""The kernel's limit on device memory: regions of GPUs, what an order asks for, and a group that holds it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.agent.daemon import assembly
from cotenant.agent.host import cgroups
from cotenant.agent.host.cgroups import AttemptCgroup, Cgroups
from cotenant.mps import device_memory
from cotenant.mps.device_memory import limits, line_for, not_in_force, regions
from cotenant.profiler.driver.facts import GpuFacts
from tests.agent.daemon import test_edge_parts
from tests.agent.daemon.test_gpu_clients import UUIDS, config, gpu, order_of, start
from tests.building.orders import changed

FIRST, SECOND = (f"nvidia/00000000:{bus}:00.0/vidmem" for bus in ("02", "1b"))
CAPACITY = f"{FIRST} 102641958912\n{SECOND} 102641958912\ndrm/0000:03:00.0/vram0 8514437120\n"

# --- The kernel's words ----------------------------------------------------------------------------


def test_a_region_is_known_by_the_bus_address_of_its_gpu() -> None:
    assert regions(CAPACITY) == (("00000000:02:00.0", FIRST), ("00000000:1b:00.0", SECOND))
    assert regions(f"{FIRST} 1\n{FIRST}1 1\n") == (), "which of the two is the memory of CUDA nobody says"
    assert regions("") == ()


@given(st.integers(1, 2_000_000))
def test_a_limit_is_in_force_when_it_is_read_back_and_not_otherwise(limit_mib: int) -> None:
    text = line_for(FIRST, limit_mib) + f"{SECOND} max\n"
    assert limits(text) == {FIRST: limit_mib * 2**20}
    assert not_in_force(text, (FIRST,), limit_mib) == ()
    assert not_in_force(text, (FIRST, SECOND), limit_mib) == (SECOND,)
    assert not_in_force(text, (FIRST,), limit_mib + 1) == (FIRST,)


# --- Which devices ---------------------------------------------------------------------------------


def known(uuid: str, bus: str) -> GpuFacts:
    return GpuFacts(index=0, uuid=uuid, name="H", memory_mib=9, bus=bus)


def test_gpus_are_matched_by_address_however_it_is_written_and_only_where_groups_can_be_limited(
    tmp_path: Path,
) -> None:
    (tmp_path / "dmem.capacity").write_text(CAPACITY)
    regions = cgroups.device_regions(tmp_path / "dmem.capacity")
    gpus = (known("a", "0000:02:00.0"), known("b", "00000000:1B:00.0"), known("c", "00000000:5E:00.0"))
    warnings: list[str] = []
    found = assembly._device_regions(Cgroups(device_memory=True), (*gpus, known("d", "")), regions, warnings)
    assert (found, warnings) == ({"a": FIRST, "b": SECOND}, [])
    assert assembly._device_regions(Cgroups(), gpus, regions, warnings) == {}
    assert "this agent may not" in warnings[0]


def test_a_kernel_without_the_controller_has_no_regions(tmp_path: Path) -> None:
    assert cgroups.device_regions(tmp_path / "dmem.capacity") == ()


def test_an_order_names_the_regions_of_all_its_devices_or_of_none() -> None:
    both = {UUIDS[0]: FIRST, UUIDS[1]: SECOND}
    settings: dict[str, Any] = {"device_regions": both, "cgroup_root": "/cg"}
    capped = start(memory_cap_mib=30_000)
    assert order_of(capped, config(**settings)).device_regions == (FIRST, SECOND)
    assert order_of(start(), config(**settings)).device_regions == (), "nothing is planned"
    assert order_of(capped, config(device_regions=both)).device_regions == (), "no groups"
    half = config(gpu(0), gpu(1), device_regions={UUIDS[0]: FIRST}, cgroup_root="/cg")
    assert order_of(capped, half).device_regions == ()


# --- The group -------------------------------------------------------------------------------------


class Kernel:
    """A folder in the place of a v2 tree; what is written to `dmem.max` reads back as the kernel has it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        order = test_edge_parts.order(base)
        self.order = changed(
            order,
            cgroup=str(base / "7-a1"),
            memory_cap_mib=4096,
            torch_limit_mib=4096,
            device_regions=(FIRST, SECOND),
        )
        self.group = AttemptCgroup(self.order, base)
        (self.leaf,) = (folder / "ranks" for folder in self.group._distinct())


def test_the_planned_memory_is_written_for_each_region_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path)
    written: list[str] = []
    plain = Path.write_text

    def write(path: Path, text: str) -> int:
        if path.name != device_memory.LIMIT:
            return plain(path, text)
        written.append(text)
        return plain(path, "".join(written))

    monkeypatch.setattr(Path, "write_text", write)
    kernel.group.make()
    assert written == [f"{FIRST} 4294967296\n", f"{SECOND} 4294967296\n"]
    assert (kernel.group.limits_device_memory, kernel.group.problem) == (True, "")
    assert kernel.group.order_within(kernel.order) == msgspec.structs.replace(
        kernel.order, torch_limit_mib=None
    )


def test_a_limit_that_is_not_taken_is_said_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path)
    kernel.group.make()  # A plain file keeps the last line only.
    assert not kernel.group.limits_device_memory
    assert f"4096 MiB of {FIRST} are not in force" in kernel.group.problem
    assert kernel.group.order_within(kernel.order) == kernel.order, "torch has to do it"

    (tmp_path / "other").mkdir()
    other = Kernel(tmp_path / "other")
    other.leaf.mkdir(parents=True)
    (other.leaf / device_memory.LIMIT).mkdir()  # Nobody can write there.
    other.group.make()
    assert not other.group.limits_device_memory
    assert "dmem.max: " in other.group.problem
    assert other.group


def test_a_kernel_without_the_controller_costs_a_job_nothing_but_that_limit(tmp_path: Path) -> None:
    """In a real tree, where there is one."""
    found = cgroups.find_cgroups()
    if not found.track or found.device_memory:
        pytest.skip("needs a cgroup tree that we may use, on a kernel without the controller dmem")
    order = Kernel(tmp_path).order
    name = f"test-{uuid.uuid4().hex[:8]}"
    group = AttemptCgroup(msgspec.structs.replace(order, cgroup=f"{found.track}/{name}"), tmp_path)
    try:
        group.make()
        assert not group.limits_device_memory
        assert group.problem.startswith("dmem.max: ")
        assert group.pids() == []
    finally:
        assert group.remove()


def test_without_a_plan_nothing_is_limited(tmp_path: Path) -> None:
    order = changed(Kernel(tmp_path).order, memory_cap_mib=None, device_regions=())
    group = AttemptCgroup(order, tmp_path)
    group.make()
    assert (group.limits_device_memory, group.problem) == (False, "")
