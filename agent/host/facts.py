"""Facts about this machine and its processes, as cheaply as the kernel gives them; and who a process is, safe
against reuse of its pid.

Rule: a pid alone never identifies a process. To signal or adopt a process that is no child, open a pidfd
first and compare the start time afterwards; in between the pid may have changed hands. A zombie counts as
gone: its resources are free, and an init that never reaps would keep it "alive".
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.ipc import ProcessIdentity
from cotenant.controller.domain import HostId

# --- The machine -----------------------------------------------------------------------------------


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
    name = wanted or socket.gethostname().partition(".")[0]
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


# --- Who a process is ------------------------------------------------------------------------------


_PROC = Path("/proc")
_boot_id = ""


class ProcessStat(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of /proc/PID/stat that we use."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu_ticks: int
    """User and system time of the process and of the children it has waited for."""
    start_ticks: int
    resident_pages: int


def boot_id() -> str:
    """Changes at every boot of the machine, so that a pid file from before never matches."""
    global _boot_id
    if not _boot_id:
        _boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return _boot_id


def stat_of(pid: int) -> ProcessStat | None:
    """What the kernel says about a process; None if there is none of this pid."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold spaces and parentheses; after the last ")" the fields are plain.
    fields = text[text.rfind(")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=sum(int(field) for field in fields[11:15]),
        start_ticks=int(fields[19]),
        resident_pages=int(fields[21]),
    )


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of a process that runs now; None if there is none, or only a zombie."""
    stat = stat_of(pid)
    if stat is None or stat.state in "ZX":
        return None
    return ProcessIdentity(pid=pid, start_ticks=stat.start_ticks, boot_id=boot_id())


def own_identity() -> ProcessIdentity:
    identity = identity_of(os.getpid())
    assert identity is not None
    return identity


def is_alive(identity: ProcessIdentity) -> bool:
    """True while exactly this process runs; zombies do not."""
    return identity_of(identity.pid) == identity


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """A pidfd of exactly this process (readable when it ends); None if it is gone. The caller closes it."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if is_alive(identity):  # Checked after opening: from here on the descriptor cannot mean another process.
        return descriptor
    os.close(descriptor)
    return None


def children_of(pid: int) -> list[int]:
    """Its child processes, zombies among them; empty if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(_PROC / str(pid) / "task"):
            found += map(int, (_PROC / str(pid) / "task" / task / "children").read_text().split())
    except FileNotFoundError:
        if (_PROC / "self/task" / str(os.getpid()) / "children").exists():
            return found
        return _children_by_parent(pid)  # A kernel without CONFIG_PROC_CHILDREN.
    except ProcessLookupError:
        return found
    return found


def _children_by_parent(parent: int) -> list[int]:
    stats = (stat_of(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return [stat.pid for stat in stats if stat is not None and stat.parent == parent]
