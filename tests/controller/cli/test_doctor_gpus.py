"""What `doctor` says of GPU hosts: a table of hosts made up by hand, a verdict and its words for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.controller.cli.doctor import gpu_checks, host_files
from cotenant.controller.cli.doctor import gpu_checks as of
from cotenant.controller.cli.doctor.check import Check
from cotenant.controller.cli.doctor.doctor import page
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.host_files import DeviceFile
from cotenant.controller.cli.doctor.mps_checks import device_memory, mps
from cotenant.controller.system import settings
from cotenant.profiler.driver.facts import GpuFacts, GpuLink
from cotenant.profiler.driver.process_info import sees_host_processes
from cotenant.profiler.indicators.device_process import Explanation
from tests.controller.cli.gpu_hosts import H100, MPS, UUID, V100, gpu, host, somebody

Says = Callable[[Facts], Check | None]

CLOSED = DeviceFile(path="/dev/nvidia0", mode=0o660, owner="root", group="video", ours=False)
GPM = Explanation(chosen="gpm", why="gpm: 11 of 11 indicators")
NO_GPM = Explanation(why="not gpm: no permission")
PLAIN = Explanation(chosen="nvml", why="nvml: 4 of 11 indicators (not gpm: no permission)")
FOR_EVERYBODY = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' "
    "| sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)
GIVE_DMEM = (
    "echo +dmem | sudo tee /sys/fs/cgroup/cgroup.subtree_control "
    "/sys/fs/cgroup/system.slice/cgroup.subtree_control"
)
BARE: dict[str, Any] = {"module": "", "pci_devices": 0, "device_files": ()}

CASES: dict[str, tuple[Says, Facts, str, str, str]] = {
    "one GPU": (of.gpus, host(H100), "ok", "0: fake H100, 79.6G, compute capability 9.0", ""),
    "a laptop": (of.gpus, host(problem="Not Found", code=12, **BARE), "warn", "none (Not Found)", ""),
    "a GPU without a driver": (
        of.gpus,
        host(problem="Library Not Found", code=12, module="", is_debian=True),
        "fail",
        "1 NVIDIA GPU on the bus, but NVML",
        "sudo apt install nvidia-driver",
    ),
    "a driver that is not loaded": (
        of.gpus,
        host(problem="Driver Not Loaded", code=9),
        "fail",
        "Driver Not Loaded",
        "sudo modprobe nvidia",
    ),
    "a driver that this user may not ask": (
        of.gpus,
        host(problem="Insufficient Permissions", code=4, device_files=(CLOSED,)),
        "fail",
        "Insufficient Permissions",
        "sudo usermod -aG video ada",
    ),
    "a driver that hangs": (of.gpus, host(problem="NVML did not answer within 30 s"), "fail", "30 s", ""),
    "a lost GPU": (
        of.gpus,
        host(H100, gpu(index=1, uuid=UUID.format(1), problem="GPU is lost")),
        "fail",
        "1 of 2 do not answer: 1: GPU is lost",
        f"sudo nvidia-smi -i {UUID.format(1)} --gpu-reset",
    ),
    "driver and CUDA": (of.driver, host(H100), "ok", "580.95.05, serves CUDA up to 13.0", ""),
    "DEFAULT mode": (of.compute_mode, host(H100), "ok", "DEFAULT", ""),
    "EXCLUSIVE_PROCESS": (
        of.compute_mode,
        host(gpu(compute_mode=3)),
        "warn",
        "through MPS or not at all",
        f"sudo nvidia-smi -i {UUID.format(0)} -c DEFAULT",
    ),
    "PROHIBITED": (
        of.compute_mode,
        host(gpu(compute_mode=2), user="root"),
        "fail",
        "PROHIBITED",
        f"nvidia-smi -i {UUID.format(0)} -c DEFAULT",
    ),
    "MIG": (
        of.mig,
        host(gpu(mig=True)),
        "warn",
        "GPU 0 in MIG mode without instances",
        f"sudo nvidia-smi -i {UUID.format(0)} -mig 0",
    ),
    "no persistence": (
        of.persistence,
        host(gpu(persistence=False)),
        "warn",
        "off on GPU 0",
        "sudo nvidia-smi -pm 1",
    ),
    "a persistence daemon without the mode": (
        of.persistence,
        host(gpu(persistence=False), persistenced=True, is_debian=True),
        "warn",
        "nvidia-persistenced runs without it",
        "sudo nvidia-smi -pm 1",
    ),
    "no persistence daemon on Debian": (
        of.persistence,
        host(gpu(persistence=False), is_debian=True),
        "warn",
        "off on GPU 0",
        "sudo apt install nvidia-persistenced && sudo systemctl enable --now nvidia-persistenced",
    ),
    "no memory errors": (of.memory_errors, host(H100), "ok", "none", ""),
    "memory errors": (
        of.memory_errors,
        host(gpu(ecc_uncorrected=1, remap_pending=True)),
        "warn",
        "0: 1 uncorrected error and memory waits",
        f"sudo nvidia-smi -i {UUID.format(0)} --gpu-reset",
    ),
    "memory that is used up": (of.memory_errors, host(gpu(remap_failed=True)), "fail", "spare memory", ""),
    "GPM": (gpu_checks.counters, host(H100), "ok", "GPM on this GPU", ""),
    "GPM for administrators": (
        gpu_checks.counters,
        host(gpu(gpm_problem="Insufficient Permissions")),
        "warn",
        "not for ada",
        FOR_EVERYBODY,
    ),
    "GPM refused to root": (
        gpu_checks.counters,
        host(gpu(gpm_problem="Unknown Error"), user="root", administrator=True),
        "warn",
        "not for root",
        "",
    ),
    "GPM in a container": (
        gpu_checks.counters,
        host(gpu(gpm_problem="Insufficient Permissions"), container=True),
        "warn",
        "not for ada",
        "",
    ),
    "neither GPM nor DCGM": (
        gpu_checks.counters,
        host(V100),
        "warn",
        "no GPM (it came with Hopper) and no DCGM",
        "",
    ),
    "DCGM asleep": (
        gpu_checks.counters,
        host(V100, dcgm_bindings="/usr/share/x"),
        "warn",
        "does not answer",
        "sudo systemctl enable --now nvidia-dcgm",
    ),
    "DCGM": (
        gpu_checks.counters,
        host(V100, dcgm_bindings="/usr/share/x", hostengine=True),
        "ok",
        "DCGM's host engine answers; the engine reads them for you",
        "",
    ),
    "an exporter": (gpu_checks.counters, host(V100, exporter=True), "ok", "dcgm-exporter answers", ""),
    "the source in use": (
        gpu_checks.indicators,
        host(H100, indicators=GPM),
        "ok",
        "gpm: 11 of 11 indicators",
        "",
    ),
    "one that was passed over": (
        gpu_checks.indicators,
        host(H100, indicators=PLAIN),
        "ok",
        "nvml: 4 of 11 indicators (not gpm: no permission)",
        "",
    ),
    "no source at all": (
        gpu_checks.indicators,
        host(H100, indicators=NO_GPM),
        "warn",
        "not gpm: no permission",
        "",
    ),
    "device files": (of.device_files, host(H100), "ok", "3 files in /dev", ""),
    "a closed device file": (
        of.device_files,
        host(H100, device_files=(CLOSED,)),
        "fail",
        "/dev/nvidia0 (660 root:video)",
        "sudo usermod -aG video ada",
    ),
    "no uvm": (
        of.device_files,
        host(H100, device_files=(msgspec.structs.replace(CLOSED, ours=True),)),
        "warn",
        "/dev/nvidia-uvm is missing",
        "sudo nvidia-modprobe -u -c=0",
    ),
    "nobody on it": (of.tenants, host(H100), "ok", "nobody", ""),
    "our own job on it": (of.tenants, host(gpu(processes=(somebody(ours=True),))), "ok", "1 process of", ""),
    "bob on it": (
        of.tenants,
        host(gpu(processes=(somebody(),))),
        "warn",
        "0: pid 4711 of bob, 1.0G: python train.py",
        "",
    ),
    "somebody of another container": (
        of.tenants,
        host(gpu(processes=(somebody(user="", command=""),))),
        "warn",
        "cannot be seen from here",
        "",
    ),
    "all memory accounted for": (
        of.held_memory,
        host(gpu(used_mib=1030, processes=(somebody(),))),
        "ok",
        "none",
        "",
    ),
    "memory held by nobody": (of.held_memory, host(gpu(used_mib=9000)), "warn", "0: 8.8G, by nobody", ""),
    "clocks": (of.clocks, host(H100), "ok", "1980 of 1980 MHz", ""),
    "heat": (
        of.clocks,
        host(gpu(clock_mhz=1200, slowed_by=("heat (hardware)",))),
        "warn",
        "0: 1200 of 1980 MHz, heat (hardware)",
        "",
    ),
    "links": (
        of.links,
        host(
            H100,
            gpu(index=1),
            links=(GpuLink(first=0, second=1, path="NVLink", peer=True),),
        ),
        "ok",
        "0-1 by NVLink (18 links each)",
        "",
    ),
    "no peers": (
        of.links,
        host(H100, gpu(index=1), links=(GpuLink(first=0, second=1, path="two processors", peer=False),)),
        "ok",
        "no peer access between 0-1",
        "",
    ),
    "MPS": (mps, host(H100), "ok", "(CUDA 13.0); one daemon for all devices", ""),
    "MPS per device": (mps, host(H100, mode="per-device"), "ok", "one daemon per device", ""),
    "a container with processes of its own": (
        of.process_numbers,
        host(H100, own_pids=True),
        "warn",
        "a PID namespace of its own",
        "",
    ),
    "a kernel that cannot limit device memory": (device_memory, host(H100), "ok", "no dmem controller", ""),
    "a driver without regions": (
        device_memory,
        host(H100, memory_regions=0),
        "ok",
        "gives the kernel no regions (615",
        "",
    ),
    "regions of one GPU": (
        device_memory,
        host(H100, H100, memory_regions=1, memory_delegated=True),
        "ok",
        "on 1 of 2 GPUs",
        "",
    ),
    "regions that the agent may not use": (
        device_memory,
        host(H100, memory_regions=1),
        "warn",
        "the kernel could as well (dmem, all GPUs), and this group may not",
        GIVE_DMEM,
    ),
    "regions of all": (
        device_memory,
        host(H100, memory_regions=1, memory_delegated=True),
        "ok",
        "and by the kernel (dmem) on all GPUs",
        "",
    ),
    "MPS switched off": (mps, host(H100, mode="off"), "ok", "switched off", ""),
    "no MPS": (
        mps,
        host(H100, mps=dataclasses.replace(MPS, control_path=None), is_debian=True),
        "warn",
        "not on PATH",
        "sudo apt install nvidia-cuda-mps",
    ),
    "no MPS on another Linux": (
        mps,
        host(H100, mps=dataclasses.replace(MPS, control_path=None)),
        "warn",
        "not on PATH",
        "",
    ),
    "a GPU too old for MPS": (mps, host(gpu(capability=(6, 1))), "warn", "none: ", ""),
    "MPS beside a GPU in MIG mode": (mps, host(H100, gpu(index=1, mig=True)), "ok", "one daemon", ""),
    "one of two too old for MPS": (mps, host(H100, gpu(index=1, capability=(6, 1))), "warn", "GPU 1 (it", ""),
}


@pytest.mark.parametrize(("says", "facts", "verdict", "words", "command"), CASES.values(), ids=CASES.keys())
def test_what_is_said_of(says: Says, facts: Facts, verdict: str, words: str, command: str) -> None:
    found = says(facts)
    assert found is not None
    assert (found.verdict, found.command) == (verdict, command), found
    assert words in found.found
    assert found.verdict == "ok" or found.todo, "what is not ok says what to do"


SILENT = {
    "a host without GPUs": (host(problem="Not Found", code=12, **BARE), 1),
    "a GPU that says nothing of itself": (host(GpuFacts(index=0, uuid=UUID.format(0)), mps=None), 7),
}


@pytest.mark.parametrize(("facts", "lines"), SILENT.values(), ids=SILENT.keys())
def test_what_is_unknown_is_not_judged(facts: Facts, lines: int) -> None:
    """The one line about the GPUs; of a silent one also driver, counters, files, tenants, memory and MPS."""
    said = [found for check in (*of.GPU_CHECKS, mps, device_memory) if (found := check(facts)) is not None]
    assert len(said) <= lines
    assert all(found.verdict != "fail" for found in said)


def test_a_command_stands_on_one_line_in_a_narrow_terminal(terminal: Callable[[int], None]) -> None:
    found = CASES["GPM for administrators"][0](CASES["GPM for administrators"][1])
    assert found is not None
    terminal(80)
    assert f"$ {found.command}" in [line.strip() for line in page([found]).splitlines()]


# --- Files -----------------------------------------------------------------------------------------


def test_debian_is_known_by_its_own_name_alone() -> None:
    assert host_files.is_debian('ID="debian"\nVERSION_ID="12"')
    assert not host_files.is_debian("ID=ubuntu\nID_LIKE=debian")
    assert not host_files.is_debian("")


def test_what_the_driver_s_files_mean() -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
    assert host_files.module_version(version) == "580.95.05"
    assert host_files.module_version("") == ""
    assert host_files.profiling_for_admins("A: 1\nRmProfilingAdminOnly: 1\n") is True
    assert host_files.profiling_for_admins("RmProfilingAdminOnly: 0") is False
    assert host_files.profiling_for_admins("") is None
    assert host_files.is_administrator("CapEff:\t000001ffffffffff") is True
    assert host_files.is_administrator("CapEff:\t0000000000000000") is False


def looked_at(root: Path) -> Facts:
    return Facts(settings.load({}, files=[], environ={}), root=root)


def test_looking_at_a_host_changes_nothing(tmp_path: Any) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").write_bytes(b"")
    (tmp_path / "dev" / "nvidia-caps").mkdir()
    assert looked_at(tmp_path).memory_regions is None
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    regions = "nvidia/00000000:02:00.0/vidmem 1024\ndrm/0000:03:00.0/vram0 1024\n"
    (tmp_path / "sys/fs/cgroup/dmem.capacity").write_text(regions)
    assert not looked_at(tmp_path).memory_delegated
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/x\n0::/user.slice\n")
    for folder in ("sys/fs/cgroup", "sys/fs/cgroup/user.slice"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "cgroup.controllers").write_text("cpu memory dmem\n")
    found = looked_at(tmp_path)
    assert (found.memory_regions, found.memory_delegated) == (1, True)
    assert [file.path for file in found.device_files] == ["/dev/nvidia0"]
    assert (found.module, found.pci_devices, found.container, found.mps_left_by) == ("", None, False, "")
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    (tmp_path / "tmp/nvidia-mps/control").touch()
    assert looked_at(tmp_path).mps_left_by == (tmp_path / "dev").owner()


def test_where_the_host_s_processes_can_be_seen_nothing_is_said_of_their_numbers(tmp_path: Path) -> None:
    assert of.process_numbers(host(H100)) is None
    assert sees_host_processes(tmp_path), "nobody can tell"
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").touch()
    assert not sees_host_processes(tmp_path)
