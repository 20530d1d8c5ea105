"""Who a process on a GPU is, as far as /proc tells.

Rule: what we cannot see is empty: a process that is gone, another container's, another user's under
hidepid. Reading the words or the environment of a process can block on it: only a child that somebody waits
for with a time limit asks here.
"""

from __future__ import annotations

import pwd
from functools import lru_cache
from pathlib import Path
from typing import Final

HOST_NAMESPACE: Final = 0xEFFFFFFC
"""The inode of the first PID namespace, the same on every Linux (PROC_PID_INIT_INO in its proc_ns.h)."""


def sees_host_processes(root: Path = Path("/")) -> bool:
    """Whether process numbers here are the host's, as the driver's are; True where nobody can tell."""
    try:
        return (root / "proc/self/ns/pid").stat().st_ino == HOST_NAMESPACE
    except OSError:
        return True


def user(pid: int) -> str:
    """Whose it is. Not by the owner of /proc/PID, which is root for any process that wants that; and lines
    end with a line feed alone: a process may name itself with any other byte."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").split("\n")
    except OSError:
        return ""
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
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


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
