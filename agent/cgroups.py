"""Control groups of attempts: what belongs to an attempt, how much it may use, how to end all of it.

Rule: an attempt never runs in the agent's own group, so that whatever ends the agent's group (systemd,
an operator) does not end jobs. Each attempt gets a folder with two leaves: `supervisor`, without limits,
so that the job's memory limit never picks the supervisor, and `ranks`. Three worlds are supported:
v2 (one tree), v1 controllers with or without an empty v2 tree beside them, and none at all; in the last
one the kernel's list of our children, the session and the environment say what belongs to an attempt.

An attempt's groups travel in `Order.cgroup` as text, `use=folder;use=folder`, with the uses `track`
(membership and killing), `memory` and `cpu`. In a v2 tree all three name one folder.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

_NAME: Final = "cotenant"
AGENT_LEAF: Final = "agent"
"""`DelegateSubgroup=` of the systemd unit: with it the controllers can be given to attempts."""
RANKS: Final = "ranks"
SUPERVISOR: Final = "supervisor"
_CPU_PERIOD_US: Final = 100_000
_REMOVE_WAIT_S: Final = 1.0


class Cgroups(msgspec.Struct, frozen=True, kw_only=True):
    """Where this host lets us make groups; empty = not for that use."""

    track: str = ""
    memory: str = ""
    cpu: str = ""
    why_not: str = ""
    """For `doctor`: why something is missing."""


def find_cgroups() -> Cgroups:
    """Look at the mounts and make the base folders. Called once by the agent, at its start."""
    mounts = _mounts(Path("/proc/self/mountinfo").read_text())
    own = _own_groups(Path("/proc/self/cgroup").read_text())
    v2 = _v2_base(mounts["v2"], own.get("", "/")) if "v2" in mounts else ""
    enabled = _enable(v2) if v2 else frozenset()
    memory = v2 if "memory" in enabled else _v1_base(mounts, own, "memory")
    cpu = v2 if "cpu" in enabled else _v1_base(mounts, own, "cpu")
    track = v2 or _v1_base(mounts, own, "pids") or _v1_base(mounts, own, "freezer") or memory
    missing = [
        name
        for name, base in (("tracking", track), ("memory limits", memory), ("cpu limits", cpu))
        if not base
    ]
    why_not = f"no writable cgroup for {', '.join(missing)}" if missing else ""
    return Cgroups(track=track, memory=memory, cpu=cpu, why_not=why_not)


def place(found: Cgroups, attempt_folder: Path, *, memory: bool, cpu: bool) -> str:
    """The value of `Order.cgroup`. Limits are named only where asked for; nothing is made yet."""
    if not found.track:
        return ""
    # The folder's hash: two agents on one machine may both have an attempt 7-a1.
    tag = hashlib.sha256(str(attempt_folder.absolute()).encode()).hexdigest()[:8]
    name = f"{attempt_folder.name}-{tag}"
    uses = [("track", found.track)]
    uses += [("memory", found.memory)] if memory and found.memory else []
    uses += [("cpu", found.cpu)] if cpu and found.cpu else []
    return ";".join(f"{use}={base}/{name}" for use, base in uses)


def sweep(found: Cgroups) -> None:
    """Remove the empty groups of attempts that nobody cleans up any more; those in use stay."""
    for base in {found.track, found.memory, found.cpu} - {""}:
        for folder in [*Path(base).glob("*/*/"), *Path(base).glob("*/")]:
            _removed(folder)


class AttemptCgroup:
    """The groups of one attempt, on the supervisor's side and for an agent that cleans up."""

    def __init__(self, text: str) -> None:
        self._folders = {
            use: Path(folder) for use, _, folder in (part.partition("=") for part in text.split(";") if part)
        }

    def __bool__(self) -> bool:
        return bool(self._folders)

    @property
    def limits_memory(self) -> bool:
        return "memory" in self._folders

    def make(self, *, memory_mib: int, cpus: int) -> None:
        """Create both leaves and set the limits on `ranks`.

        Raises:
            OSError: the host does not permit what `find_cgroups` found possible.
        """
        for folder in self._distinct():
            for leaf in (SUPERVISOR, RANKS):
                (folder / leaf).mkdir(parents=True, exist_ok=True)
            if (folder / "cgroup.controllers").exists():
                _give_controllers(folder)
        if memory_mib > 0 and self.limits_memory:
            _limit_memory(self._folders["memory"] / RANKS, memory_mib * 1024 * 1024)
        if cpus > 0 and "cpu" in self._folders:
            _limit_cpu(self._folders["cpu"] / RANKS, cpus)

    def enter(self, leaf: str) -> None:
        """Move the calling process. Ranks do so themselves between fork and exec, so that none escapes."""
        for folder in self._distinct():
            (folder / leaf / "cgroup.procs").write_text("0")

    def pids(self, leaf: str = RANKS) -> list[int]:
        """Processes in a leaf, zombies not among them where the kernel leaves them out."""
        if not self._folders:
            return []
        try:
            return [
                int(line) for line in (self._folders["track"] / leaf / "cgroup.procs").read_text().split()
            ]
        except (FileNotFoundError, OSError):
            return []

    def kill(self, leaf: str = RANKS) -> bool:
        """SIGKILL everything in a leaf in one stroke; False where the kernel cannot (v1)."""
        if not self._folders:
            return False
        try:
            (self._folders["track"] / leaf / "cgroup.kill").write_text("1")
        except OSError:
            return False
        return True

    def oom_kills(self) -> int:
        """How often the kernel killed a rank for exceeding the limit of this group."""
        if not self.limits_memory:
            return 0
        leaf = self._folders["memory"] / RANKS
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                words = (leaf / name).read_text().split()
                return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
        return 0

    def remove(self, *, leaves: tuple[str, ...] = (RANKS, SUPERVISOR)) -> bool:
        """Remove leaves, and the attempt's folder with the last one; False while a process is still there."""
        deadline_s = time.monotonic() + _REMOVE_WAIT_S
        for folder in self._distinct():
            for leaf in leaves:
                while not _removed(folder / leaf):
                    if time.monotonic() > deadline_s:
                        return False
                    time.sleep(0.01)  # The kernel takes a moment to let go of an exited process.
            if len(leaves) == 2 and not _removed(folder):
                return False
        return True

    def _distinct(self) -> list[Path]:
        return list(dict.fromkeys(self._folders.values()))


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _limit_memory(leaf: Path, limit: int) -> None:
    if (leaf / "memory.max").exists():
        (leaf / "memory.max").write_text(str(limit))
        with suppress(OSError):  # Absent without swap accounting.
            (leaf / "memory.swap.max").write_text("0")
    else:
        (leaf / "memory.limit_in_bytes").write_text(str(limit))
        with suppress(OSError):
            (leaf / "memory.memsw.limit_in_bytes").write_text(str(limit))


def _limit_cpu(leaf: Path, cpus: int) -> None:
    quota_us = cpus * _CPU_PERIOD_US
    if (leaf / "cpu.max").exists():
        (leaf / "cpu.max").write_text(f"{quota_us} {_CPU_PERIOD_US}")
    else:
        (leaf / "cpu.cfs_period_us").write_text(str(_CPU_PERIOD_US))
        (leaf / "cpu.cfs_quota_us").write_text(str(quota_us))


# --- Finding out what the host permits -------------------------------------------------------------


class _Mount(msgspec.Struct, frozen=True):
    root: str
    point: str


def _mounts(mountinfo: str) -> dict[str, _Mount]:
    """cgroup mounts by controller; `v2` for the unified tree."""
    found: dict[str, _Mount] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        mount = _Mount(fields[3], fields[4])
        names = ["v2"] if kind[0] == "cgroup2" else kind[2].split(",")
        for name in names:
            found.setdefault(name, mount)
    return found


def _own_groups(text: str) -> dict[str, str]:
    """Our own group by controller; "" for the unified tree."""
    own = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            own[name] = path
    return own


def _inside(mount: _Mount, path: str) -> Path:
    """The folder of a group; in a container the mount may show only a part of the tree."""
    if mount.root != "/" and path.startswith(mount.root):
        path = path[len(mount.root) :]
    folder = Path(mount.point + "/" + path.strip("/"))
    return folder if folder.is_dir() else Path(mount.point)


def _v2_base(mount: _Mount, own_path: str) -> str:
    own = _inside(mount, own_path)
    if own.name == AGENT_LEAF and os.access(own.parent, os.W_OK):
        base = own.parent / "attempts"  # Delegated by systemd, with the agent in a leaf of its own.
    elif os.geteuid() == 0:
        base = Path(mount.point) / _NAME  # Outside the agent's unit: nothing that stops the unit reaches it.
    elif os.access(own, os.W_OK):
        base = own / "attempts"
    else:
        return ""
    return _made(base)


def _v1_base(mounts: dict[str, _Mount], own: dict[str, str], controller: str) -> str:
    """Below our own v1 group: a container's limits go on holding. In v1 nothing kills downwards."""
    if controller not in mounts:
        return ""
    folder = _inside(mounts[controller], own.get(controller, "/"))
    return str(folder / _NAME) if os.access(folder, os.W_OK) else ""


def _made(base: Path) -> str:
    try:
        base.mkdir(exist_ok=True)
        probe = base / f".probe-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return ""
    return str(base)


def _enable(base: str) -> frozenset[str]:
    """Pass memory and cpu down to the base; what is there afterwards counts, not what we asked for."""
    for folder in (Path(base).parent, Path(base)):
        _give_controllers(folder)
    try:
        return frozenset((Path(base) / "cgroup.subtree_control").read_text().split())
    except OSError:
        return frozenset()


def _give_controllers(folder: Path) -> None:
    for controller in ("memory", "cpu", "pids"):
        with suppress(OSError):  # Not there, not delegated, or a process sits in the folder itself.
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
