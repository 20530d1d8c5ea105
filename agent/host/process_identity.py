"""Who a process is, safe against reuse of its number, as cheaply as the kernel tells.

Rule: a pid alone never identifies a process. To signal or adopt a process that is no child, open a pidfd
first and compare the start time afterwards; in between the pid may have changed hands. A zombie counts as
gone: its resources are free, and an init that never reaps would keep it "alive".
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from cotenant.agent.ipc.records import ProcessIdentity

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


def began_at(start_ticks: int) -> str:
    """When a process of this boot began, for a person: `Nov 28 09:12`."""
    booted_unix_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    began_unix_s = booted_unix_s + start_ticks / os.sysconf("SC_CLK_TCK")
    return time.strftime("%b %d %H:%M", time.localtime(began_unix_s))


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
    """Returns the child processes of a process, zombies among them; empty if the process is gone."""
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


def tree_of(root: int) -> list[int]:
    """A process and all below it, itself first."""
    pids = [root]
    for pid in pids:  # Grows while we go: breadth first.
        pids += [child for child in children_of(pid) if child not in pids]
    return pids


def _children_by_parent(parent: int) -> list[int]:
    stats = (stat_of(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return [stat.pid for stat in stats if stat is not None and stat.parent == parent]
