"""Who holds a lock on a file, from the kernel.

Rule: what a file says about its holder was written by whoever may write it, so nothing here reads it. The
kernel lists each lock with the file's device and inode and the process that took it (/proc/locks).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from cotenant.agent.host.process_identity import began_at, stat_of
from cotenant.profiler.driver import process_info

_PROC = Path("/proc")
AGENT = b"\0-m\0cotenant.agent\0"
"""In the command line of every agent."""


class LockHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that lives and holds a lock."""

    pid: int
    user: str
    began: str
    is_agent: bool

    def __str__(self) -> str:
        who = "the agent" if self.is_agent else "a process that is no agent,"
        return f"{who} of {self.user} (pid {self.pid}, since {self.began})"


def find_holder(file: int) -> LockHolder | None:
    """The process that took the lock on an open file (O_PATH is enough), an agent before others; None: it has
    ended (whoever inherited the file holds it now), or is in another pid namespace."""
    try:
        pids = list(_pids(_kernel_name(file)))
    except OSError:  # A kernel that does not list locks.
        return None
    found = [holder for pid in pids if (holder := _holder(pid, file)) is not None]
    return max(found, key=lambda holder: holder.is_agent, default=None)


def _kernel_name(file: int) -> str:
    """`MAJOR:MINOR:INODE` as /proc/locks has it: what `stat` says of some file systems is another device."""
    info = dict(line.split(":\t", 1) for line in _lines("self/fdinfo", str(file)) if ":\t" in line)
    mounts = (line.split(" ") for line in _lines("self/mountinfo"))
    device = next((fields[2] for fields in mounts if fields[0] == info["mnt_id"]), "0:0")
    major, minor = map(int, device.split(":"))
    return f"{major:02x}:{minor:02x}:{info.get('ino') or os.fstat(file).st_ino}"


def _pids(name: str) -> Iterator[int]:
    for line in _lines("locks"):
        fields = line.split()
        if len(fields) == 8 and fields[1] == "FLOCK" and fields[5] == name:  # A waiting one has `->` there.
            yield int(fields[4])


def _holder(pid: int, file: int) -> LockHolder | None:
    """None: the process has ended, and its number may be another's by now."""
    try:
        stat = stat_of(pid)
        if stat is None or stat.state in "ZX" or _has_open(pid, file) is False:
            return None
        words = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:  # It has ended, or we may not see it.
        return None
    return LockHolder(
        pid=pid,
        user=process_info.user(pid),
        began=began_at(stat.start_ticks),
        is_agent=AGENT in words,
    )


def _lines(*names: str) -> list[str]:
    """By line feeds alone: a user may name a mount with any other byte."""
    return _PROC.joinpath(*names).read_text(errors="replace").split("\n")


def _has_open(pid: int, file: int) -> bool | None:
    """Whether a process has this file open; None: we may not see that."""
    wanted = os.fstat(file)
    try:
        for each in os.listdir(_PROC / str(pid) / "fd"):
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(_PROC / str(pid) / "fd" / each), wanted):
                    return True
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        pass
    return False
