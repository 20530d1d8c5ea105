"""Who a process on a GPU is, as far as /proc tells.

Rule: what we cannot see is empty: a process that is gone, another container's, another user's under
hidepid. Reading the words or the environment of a process can block on it: only a child that somebody waits
for with a time limit asks here.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from cotenant.profiler.driver.facts import GpuFacts

HOST_NAMESPACE: Final = 0xEFFFFFFC
"""The inode of the first PID namespace, the same on every Linux (PROC_PID_INIT_INO in its proc_ns.h)."""

BY_WINDOWS: Final = (
    "under WSL2 Windows uses this GPU as well, and NVML does not say whose a process is: memory in use after "
    "a job does not count as held, and agent.foreign=ignore offers the GPU whoever computes there"
)
BY_KERNEL: Final = (
    "the kernel has pages of its own in this GPU's memory: memory in use after a job does not count as held; "
    "with the driver's option NVreg_CoherentGPUMemoryMode=driver it would have none"
)


def sees_host_processes(root: Path = Path("/")) -> bool:
    """Whether process numbers here are the host's, as the driver's are; True where nobody can tell."""
    try:
        return (root / "proc/self/ns/pid").stat().st_ino == HOST_NAMESPACE
    except OSError:
        return True


def unlisted_users(gpus: Iterable[GpuFacts], root: Path = Path("/")) -> dict[str, str]:
    """Who uses the memory of GPUs and is in none of NVML's lists, by UUID, for a person.

    Under WSL2 it is Windows; where a GPU's memory is a NUMA node of the host (numa_status of NVIDIA's kernel
    module: GH200, GB200), the kernel.
    """
    is_wsl = "microsoft" in read_proc(root / "proc/sys/kernel/osrelease").lower()
    found: dict[str, str] = {}
    for gpu in gpus:
        place = f"proc/driver/nvidia/gpus/{gpu.bus.lower()[-len('0000:00:00.0') :]}/numa_status"
        is_node = "online" in read_proc(root / place).lower().split()
        why = BY_WINDOWS if is_wsl else BY_KERNEL if is_node else ""
        found |= {each.uuid: why for each in (gpu, *gpu.instances) if why}
    return found


def user(pid: int) -> str:
    """Whose it is. Not by the owner of /proc/PID, which is root for any process that wants that; and lines
    end with a line feed alone: a process may name itself with any other byte."""
    lines = read_proc(Path(f"/proc/{pid}/status")).split("\n")
    return next((_name_of(int(line.split("\t")[1])) for line in lines if line.startswith("Uid:\t")), "")


@lru_cache(maxsize=256)
def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def runs_in_container(root: Path = Path("/")) -> bool:
    """Whether docker or podman says so; others may not."""
    return any((root / name).exists() for name in (".dockerenv", "run/.containerenv"))


def name(pid: int) -> str:
    """The name that the kernel gives a process: at most 15 characters, and a zombie has one as well."""
    return read_proc(Path(f"/proc/{pid}/comm")).strip()


def command(pid: int, characters_max: int) -> str:
    """The words of a process, on one line; its name where it has none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    text = " ".join(word for word in words if word) or name(pid)
    text = " ".join("".join(char if char.isprintable() else "?" for char in text).split())
    return text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."


def environment(pid: int) -> dict[str, str]:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in data.decode(errors="replace").split("\0"))
    return {variable: value for variable, equals, value in pairs if equals}


def read_proc(path: Path) -> str:
    """The text of a file below /proc; empty where it is not there, or not for us."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
