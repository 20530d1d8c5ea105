"""What the files and ports of this host say about its GPUs, beside what NVML says.

Rule: looks and changes nothing; only loopback is connected to, with a time limit.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.mps import device_memory
from cotenant.profiler.driver.probe_client import gpus_on_the_bus
from cotenant.profiler.driver.process_info import runs_in_container, sees_host_processes

DCGM_PORT: Final = 5555
EXPORTER_PORT: Final = 9400
CONNECT_TIMEOUT_S: Final = 0.2
DCGM_BINDINGS: Final = (
    "usr/share/datacenter-gpu-manager-4/bindings/python3",
    "usr/local/dcgm/bindings/python3",
)
DCGM_OLD: Final = ("usr/bin/dcgmi", "usr/bin/nv-hostengine", "usr/lib/x86_64-linux-gnu/libdcgm.so.3")
MPS_SOCKET: Final = "tmp/nvidia-mps/control"
DEVICE_FILES: Final = re.compile(r"nvidia(ctl|-uvm|-modeset|\d+)")
SUPER_USER_CAPABILITY: Final = 21
"""CAP_SYS_ADMIN, which the driver takes for an administrator."""


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A device file, one of /dev/nvidia*."""

    path: str
    mode: int
    owner: str
    group: str
    ours: bool
    """We may read and write it."""


class HostFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a GPU host that tell what NVML does not."""

    is_debian: bool = False
    """Debian itself: names of its packages mean something."""
    container: bool = False
    own_pids: bool = False
    """We are in a PID namespace other than the host's."""
    user: str = ""
    administrator: bool = False
    """Root, or the capability that the driver takes for it."""
    module: str = ""
    """Version of the kernel module that is loaded; empty: none."""
    pci_devices: int | None = None
    """NVIDIA's display and 3D controllers on the bus; None: the bus cannot be read."""
    profiling_for_admins: bool | None = None
    """The driver keeps profiling counters to administrators."""
    device_files: tuple[DeviceFile, ...] = ()
    persistenced: bool = False
    dcgm_bindings: str = ""
    dcgm_old: bool = False
    """DCGM's programs are here; without its Python bindings it is an old version."""
    hostengine: bool = False
    """Something listens at DCGM's port on this machine."""
    exporter: bool = False
    """Something listens at dcgm-exporter's port on this machine."""
    mps_left_by: str = ""
    """Whose control socket is where CUDA looks by default, whether a daemon listens there or not."""
    memory_regions: int | None = None
    """GPUs whose memory the kernel can limit for a group of processes; None: the kernel cannot at all."""
    memory_delegated: bool = False
    """Our control group may pass this controller on to groups below it."""


def look(root: Path = Path("/")) -> HostFiles:
    """Facts below `root`, and who listens on loopback."""
    on_the_bus = gpus_on_the_bus(root)
    return HostFiles(
        is_debian=is_debian(_text(root / "etc/os-release")),
        container=runs_in_container(root),
        own_pids=not sees_host_processes(root),
        user=_name(pwd.getpwuid, os.geteuid()),
        administrator=os.geteuid() == 0 or is_administrator(_text(root / "proc/self/status")),
        module=module_version(_text(root / "proc/driver/nvidia/version")),
        pci_devices=None if on_the_bus is None else len(on_the_bus),
        profiling_for_admins=profiling_for_admins(_text(root / "proc/driver/nvidia/params")),
        device_files=tuple(_device_files(root / "dev")),
        persistenced=(root / "run/nvidia-persistenced/socket").exists(),
        dcgm_bindings=next((f"/{name}" for name in DCGM_BINDINGS if (root / name).is_dir()), ""),
        dcgm_old=any((root / name).exists() for name in DCGM_OLD),
        hostengine=_listens(DCGM_PORT),
        exporter=_listens(EXPORTER_PORT),
        mps_left_by=next((_name(pwd.getpwuid, each.stat().st_uid) for each in root.glob(MPS_SOCKET)), ""),
        memory_regions=_memory_regions(root / "sys/fs/cgroup"),
        memory_delegated=device_memory.CONTROLLER in _own_controllers(root),
    )


# --- What the files mean: pure -------------------------------------------------------------------


def is_debian(os_release: str) -> bool:
    return "ID=debian" in (line.strip().replace('"', "") for line in os_release.splitlines())


def module_version(text: str) -> str:
    """The version of the kernel module, from the line `NVRM version: ... Kernel Module 580.95.05 ...`."""
    first = text.splitlines()[0] if text else ""
    found = re.search(r"\b\d{3,4}\.\d+(\.\d+)?\b", first)
    return found[0] if found else ""


def profiling_for_admins(params: str) -> bool | None:
    found = re.search(r"^RmProfilingAdminOnly:\s*(\d)", params, re.MULTILINE)
    return None if found is None else found[1] == "1"


def is_administrator(status: str) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> SUPER_USER_CAPABILITY & 1)


# --- Looking -----------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[: 64 * 1024]
    except OSError:
        return ""


def _name(of: Callable[[int], Sequence[object]], number: int) -> str:
    """A user's or group's name; the number where it has none."""
    try:
        return str(of(number)[0])
    except KeyError:
        return str(number)


def _memory_regions(tree: Path) -> int | None:
    if not (tree / device_memory.CAPACITY).exists():
        return None
    return len(device_memory.regions(_text(tree / device_memory.CAPACITY)))


def _own_controllers(root: Path) -> list[str]:
    """Controllers of our group in the v2 tree; root makes groups at the top of the tree."""
    lines = _text(root / "proc/self/cgroup").splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = "" if os.geteuid() == 0 else own.strip("/")
    return _text(root / "sys/fs/cgroup" / folder / "cgroup.controllers").split()


def _device_files(folder: Path) -> Iterable[DeviceFile]:
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("nvidia*")):
        if not DEVICE_FILES.fullmatch(path.name):
            continue
        try:
            status = path.stat()
        except OSError:
            continue
        yield DeviceFile(
            path=f"/dev/{path.name}",
            mode=stat.S_IMODE(status.st_mode),
            owner=_name(pwd.getpwuid, status.st_uid),
            group=_name(grp.getgrgid, status.st_gid),
            ours=os.access(path, os.R_OK | os.W_OK),
        )


def _listens(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        return probe.connect_ex(("127.0.0.1", port)) == 0
