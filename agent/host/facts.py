"""Facts about this machine, as cheaply as the kernel gives them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

from cotenant.controller.domain import HostId
from cotenant.controller.system.endpoint import this_host

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


OPEN_ONE: Final = (
    "for their jobs set agent.state_dir to a folder that all may enter, such as /var/lib/cotenant/agent"
)


class BadHostName(ValueError):
    """A name that cannot be part of a device's name."""


def host_name(wanted: str) -> HostId:
    """The host's name in the cluster: the one asked for, else the first part of the machine's own.

    Raises:
        BadHostName: it has characters that names here must not have.
    """
    name = this_host(wanted)
    if not _NAME.fullmatch(name):
        raise BadHostName(f"{name!r} cannot be a host's name: letters, digits, '.', '_' and '-', 64 at most")
    return HostId(name)


def usable_cores() -> tuple[int, ...]:
    """The cores that this process, and so its jobs, may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def closed_folder(path: Path) -> Path | None:
    """The first folder on the way to `path` that only its owner may enter, if this process is root.

    A root agent's jobs of other users walk through it to their sockets and the job-side packages.
    """
    if os.geteuid() != 0:
        return None
    way = (*reversed(path.absolute().parents), path)
    return next((folder for folder in way if not folder.stat().st_mode & 0o001), None)


def memory_mib() -> int:
    """Physical memory, or the container's limit if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total // (1024 * 1024)


def memory_available_mib() -> float:
    """What could be used without swapping, as the kernel estimates it."""
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) / 1024
    return float(memory_mib())


def private_mib(pid: int) -> float:
    """A process's own part of what it has in memory: what it shares is divided among those who share it; 0:
    it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) / 1024 for line in file if line.startswith(b"Pss:")), 0.0)
    except OSError:
        return 0.0


def now_s() -> float:
    """Seconds since boot, sleep included: a lease runs on while a laptop is asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
