"""What the host permits: where control groups are mounted, and which of them we may make groups in."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.mps import device_memory

FOLDER: Final = "cotenant"
AGENT_LEAF: Final = "agent"
"""`DelegateSubgroup=` of the systemd unit: with it the controllers can be given to attempts."""


class _Mount(msgspec.Struct, frozen=True):
    root: str
    point: str


def mounts_of(mountinfo: Path = Path("/proc/self/mountinfo")) -> dict[str, _Mount]:
    """cgroup mounts by controller; `v2` for the unified tree."""
    # Users name the folders that they mount on: in any bytes.
    return mounts_in(mountinfo.read_text(errors="replace"))


def mounts_in(mountinfo: str) -> dict[str, _Mount]:
    found: dict[str, _Mount] = {}
    for line in mountinfo.split("\n"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        names = ["v2"] if kind[0] == "cgroup2" else kind[2].split(",")
        for name in names:
            found.setdefault(name, _Mount(fields[3], fields[4]))
    return found


def _own_group(controller: str, mount: _Mount) -> Path:
    """The folder of our own group; in a container the mount may show only a part of the tree."""
    return own_group_in(Path("/proc/self/cgroup").read_text(errors="replace"), controller, mount)


def own_group_in(groups: str, controller: str, mount: _Mount) -> Path:
    path = "/"
    for line in groups.strip("\n").split("\n"):
        _, controllers, where = line.split(":", 2)
        if controller in controllers.split(",") or (controller == "v2" and not controllers):
            path = where
    if mount.root != "/" and path.startswith(mount.root):
        path = path[len(mount.root) :]
    folder = Path(mount.point + "/" + path.strip("/"))
    return folder if folder.is_dir() else Path(mount.point)


def v2_base() -> str:
    mount = mounts_of().get("v2")
    if mount is None:
        return ""
    own = _own_group("v2", mount)
    if own.name == AGENT_LEAF and os.access(own.parent, os.W_OK):
        base = own.parent / "attempts"  # Delegated by systemd, with the agent in a leaf of its own.
    elif os.geteuid() == 0:
        base = Path(mount.point) / FOLDER  # Outside the agent's unit: nothing that stops the unit reaches it.
    elif os.access(own, os.W_OK):
        base = own / "attempts"
    else:
        return ""
    return str(base) if _can_make_groups(base) else ""


def v1_base(controller: str) -> str:
    """Below our own v1 group: a container's limits go on holding. In v1 nothing kills downwards."""
    mount = mounts_of().get(controller)
    if mount is None:
        return ""
    folder = _own_group(controller, mount)
    return str(folder / FOLDER) if os.access(folder, os.W_OK) else ""


def _can_make_groups(base: Path) -> bool:
    probe = base / f".probe-{os.getpid()}"
    try:
        base.mkdir(exist_ok=True)
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def pass_down(folder: Path) -> None:
    """Give the controllers to a folder's children; what is there afterwards counts, not what was asked."""
    for controller in ("memory", "cpu", "pids", device_memory.CONTROLLER):
        with suppress(OSError):  # v1, not there, not delegated, or a process sits in the folder itself.
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def passed_down(folder: Path) -> frozenset[str]:
    try:
        return frozenset((folder / "cgroup.subtree_control").read_text().split())
    except OSError:
        return frozenset()
