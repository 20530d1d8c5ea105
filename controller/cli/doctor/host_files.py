"""What the files of a host say: device files, control groups, limits, disks, settings files, torch.

Rule: it looks, and neither changes nor judges. What it cannot see is None or empty.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from cotenant.controller.cli.doctor.processes import Agent
from cotenant.controller.system import paths
from cotenant.controller.system.settings import LoadedSettings

DEVICE_FILES: Final = re.compile(r"nvidia(ctl|-uvm|-modeset|\d+)")
SUPER_USER_CAPABILITY: Final = 21
"""CAP_SYS_ADMIN, which the driver takes for an administrator."""
READ_MAX: Final = 256 * 1024


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A device file, one of /dev/nvidia*."""

    path: str
    mode: int
    owner: str
    group: str
    ours: bool
    """We may read and write it."""


class InheritedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs inherit from the agent, or would from one that is started from here."""

    open_files: int | None = None
    """None: unlimited."""
    locked_kib: int | None = None


class Cgroup(msgspec.Struct, frozen=True, kw_only=True):
    """The control group of the agent that runs here, else that of this process."""

    version: Literal[0, 1, 2] = 0
    path: str = ""
    ours: bool = False
    """v2: that process's user may make groups below it."""
    writable: tuple[str, ...] = ()
    """v1: the controllers that we may use."""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A place for state or checkpoints. What is said of it holds for the nearest folder that exists."""

    role: str
    setting: str
    path: str
    exists: str = ""
    writable: bool = True
    filesystem: str = ""
    free_mib: int | None = None
    free_files: int | None = None
    """None: this file system does not count them."""


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    cuda: tuple[int, int] | None
    """The CUDA that it was built for; None: it was built for none."""
    place: str = ""
    """The environment that it is installed in, if that is not our own."""


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    readable: bool = True
    """By us. A file that is not is skipped, unless it was named."""
    open_to_others: bool = False
    """Users other than its owner may write it."""


# --- What texts mean: pure ----------------------------------------------------------------------------


def is_debian(os_release: str) -> bool:
    return "ID=debian" in (line.strip().replace('"', "") for line in os_release.splitlines())


def module_version(text: str) -> str:
    """The version of the kernel module, from the line `NVRM version: ... Kernel Module 580.95.05 ...`."""
    found = re.search(r"\b\d{3,4}\.\d+(\.\d+)?\b", text.partition("\n")[0])
    return found[0] if found else ""


def profiling_for_admins(params: str) -> bool | None:
    found = re.search(r"^RmProfilingAdminOnly:\s*(\d)", params, re.MULTILINE)
    return None if found is None else found[1] == "1"


def is_administrator(status: str) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> SUPER_USER_CAPABILITY & 1)


def limits(text: str) -> InheritedLimits:
    """The limits that a process inherits, from /proc/PID/limits, whose columns are two spaces apart."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines())
    found = {row[0]: int(row[1]) if row[1].isdigit() else None for row in rows if len(row) >= 3}
    locked = found.get("Max locked memory")
    return InheritedLimits(
        open_files=found.get("Max open files"), locked_kib=None if locked is None else locked // 1024
    )


def own_group(text: str) -> str:
    """The v2 path of a process from its /proc/PID/cgroup, or its systemd path under v1; empty if none."""
    for prefix in ("0::", "1:name=systemd:"):
        for line in text.splitlines():
            if line.startswith(prefix):
                return line.removeprefix(prefix)
    return ""


def torch_of(version_file: str, place: str = "") -> Torch | None:
    """The torch that the text of `torch/version.py` describes, which says what it was built for. Importing it
    takes seconds."""
    version = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", version_file, re.MULTILINE)
    if version is None:
        return None
    cuda = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", version_file, re.MULTILINE)
    return Torch(version=version[1], cuda=None if cuda is None else (int(cuda[1]), int(cuda[2])), place=place)


# --- Looking ------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:READ_MAX]
    except OSError:
        return ""


def entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def account_name(of: Callable[[int], Sequence[object]], number: int) -> str:
    """A user's or group's name; the number where it has none."""
    try:
        return str(of(number)[0])
    except KeyError:
        return str(number)


def device_files(folder: Path) -> Iterable[DeviceFile]:
    for path in filter(lambda each: DEVICE_FILES.fullmatch(each.name), entries(folder)):
        with suppress(OSError):
            status = path.stat()
            yield DeviceFile(
                path=f"/dev/{path.name}",
                mode=stat.S_IMODE(status.st_mode),
                owner=account_name(pwd.getpwuid, status.st_uid),
                group=account_name(grp.getgrgid, status.st_gid),
                ours=os.access(path, os.R_OK | os.W_OK),
            )


def cgroup(tree: Path, path: str, agent: Agent | None) -> Cgroup:
    """The control group `path` in a tree, of the agent if one runs here."""
    if (tree / "cgroup.controllers").exists():
        folder = tree / path.lstrip("/")
        if agent is not None and agent.uid != os.geteuid():
            with suppress(OSError):
                return Cgroup(version=2, path=path, ours=agent.uid in (0, folder.stat().st_uid))
        return Cgroup(version=2, path=path, ours=os.access(folder, os.W_OK))
    writable = tuple(name for name in ("memory", "cpu", "pids") if os.access(tree / name, os.W_OK))
    version: Literal[0, 1] = 1 if any((tree / name).is_dir() for name in ("memory", "cpu")) else 0
    return Cgroup(version=version, path=path, writable=writable)


def settings_files(read: Sequence[Path], system: Path) -> Iterable[SettingsFile]:
    """Settings files that were read, and those in the system's folder that we may not read."""
    unread = [path for path in entries(system) if path.suffix == ".toml"]
    for path in dict.fromkeys((*read, *unread)):
        readable = os.access(path, os.R_OK)
        if path in read or not readable:
            with suppress(OSError):
                others = bool(path.stat().st_mode & 0o022)
                yield SettingsFile(path=str(path), readable=readable, open_to_others=others)


def folders(loaded: LoadedSettings, mounts: str) -> Iterable[Folder]:
    settings = loaded.settings
    yield _folder("checkpoints", "checkpoint.root", paths.checkpoint_root(settings), mounts)
    yield _folder("agent's state", "agent.state_dir", paths.agent_state_dir(settings), mounts)
    journal = paths.controller_state_dir(settings)
    if journal.exists():  # Else the controller is another machine's.
        yield _folder("journal", "controller.state_dir", journal, mounts)


def _folder(role: str, setting: str, path: Path, mounts: str) -> Folder:
    path = path.absolute()
    # `exists` of a Path raises where a folder on the way is closed to us.
    existing = next(each for each in (path, *path.parents) if os.path.exists(each))
    found = Folder(role=role, setting=setting, path=str(path), exists=str(existing))
    with suppress(OSError):
        space = os.statvfs(existing)
        return msgspec.structs.replace(
            found,
            writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
            filesystem=paths.mount_of(os.path.realpath(existing), mounts)[1],
            free_mib=space.f_bavail * space.f_frsize // 2**20,
            free_files=space.f_favail if space.f_files else None,
        )
    return found
