"""Control groups of attempts: what belongs to an attempt, how much it may use, how to end all of it.

Rule: an attempt never runs in the agent's own group, so that whatever ends the agent's group (systemd,
an operator) does not end jobs. Each attempt gets a folder with two leaves: `supervisor`, without limits,
so that the job's memory limit never picks the supervisor, and `ranks`. Three worlds are supported:
v2 (one tree), v1 controllers with or without an empty v2 tree beside them, and none at all; in the last
one the kernel's list of our children, the session and the environment say what belongs to an attempt.

Device memory has a limit of the kernel's own where it and the driver offer one (`dmem`, v2 only). It comes on
top of MPS's and torch's: where it cannot be set they hold as ever, and a note says so.

`Order.cgroup` is a place below the root that the agent found; a tag of the attempt's folder is added to
it, since two agents on one machine may both have an attempt 7-a1 and must never end each other's.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.host import cgroup_mounts
from cotenant.agent.ipc.records import Order
from cotenant.mps import device_memory

RANKS: Final = "ranks"
SUPERVISOR: Final = "supervisor"
_CPU_PERIOD_US: Final = 100_000
_REMOVE_WAIT_S: Final = 1.0
_AT_LIMIT: Final = 0.99
"""Of its limit: nearer the kernel need not come before what is asked for next no longer fits."""


class Cgroups(msgspec.Struct, frozen=True, kw_only=True):
    """Where this host lets us make groups; empty = not for that use."""

    track: str = ""
    """The root for `Order.cgroup`."""
    memory: bool = False
    cpu: bool = False
    device_memory: bool = False
    why_not: str = ""
    """For `doctor`: why something is missing."""


def find_cgroups() -> Cgroups:
    """Look at the mounts and make the base folder. Called once by the agent, at its start."""
    v2 = cgroup_mounts.v2_base()
    if v2:
        cgroup_mounts.pass_down(Path(v2).parent)
        cgroup_mounts.pass_down(Path(v2))
    passed = cgroup_mounts.passed_down(Path(v2)) if v2 else frozenset[str]()
    memory = v2 if "memory" in passed else cgroup_mounts.v1_base("memory")
    cpu = v2 if "cpu" in passed else cgroup_mounts.v1_base("cpu")
    track = v2 or cgroup_mounts.v1_base("pids") or cgroup_mounts.v1_base("freezer") or memory
    uses = (("tracking", track), ("memory limits", memory), ("cpu limits", cpu))
    missing = ", ".join(name for name, base in uses if not base)
    return Cgroups(
        track=track,
        memory=bool(memory),
        cpu=bool(cpu),
        device_memory=device_memory.CONTROLLER in passed,
        why_not=f"no writable cgroup for {missing}" if missing else "",
    )


def device_regions(capacity: Path | None = None) -> tuple[tuple[str, str], ...]:
    """Bus address and name of each GPU's region of device memory; none where kernel or driver have none."""
    mount = cgroup_mounts.mounts_of().get("v2")
    if capacity is None and mount is None:
        return ()
    path = capacity or Path(mount.point if mount else "/") / device_memory.CAPACITY
    try:
        return device_memory.regions(path.read_text())
    except OSError:  # A kernel without the controller, or a container that does not see the root.
        return ()


NEW_S: Final = 60.0
"""A supervisor makes its groups a moment before it starts anything in them."""


def sweep(found: Cgroups) -> None:
    """Remove empty groups that attempts have left behind. Those in use stay, and new ones: another agent
    of this machine may be about to use them."""
    v1 = {cgroup_mounts.v1_base("memory"), cgroup_mounts.v1_base("cpu")} - {""}
    for base in {found.track, *v1} - {""}:
        for folder in [*Path(base).glob("*/*/"), *Path(base).glob("*/")]:
            with suppress(FileNotFoundError):
                if time.time() - folder.stat().st_ctime >= NEW_S:
                    _try_remove(folder)
    for base in v1:  # The v2 base stays: what it passes down is set once.
        _try_remove(Path(base))


def group_tag(attempt_folder: Path) -> str:
    """Returns the tag at the end of the name of an attempt's group: other agents have other folders."""
    return hashlib.sha256(str(attempt_folder.resolve()).encode()).hexdigest()[:8]


class AttemptCgroup:
    """The groups of one attempt, on the supervisor's side and for an agent that cleans up."""

    def __init__(self, order: Order, attempt_folder: Path) -> None:
        """Looks for the groups of an attempt and makes none; with an empty `Order.cgroup` every method does
        nothing."""
        self._memory_mib, self._cpus = order.start.host_memory_mib, order.start.cpus
        self._device_mib, self._regions = order.start.memory_cap_mib, order.device_regions
        self.limits_device_memory = False
        """The kernel enforces the planned device memory: it was read back."""
        self.problem = ""
        """Why it does not, where it was to; for a person."""
        self._folders: dict[str, Path] = {}
        """By use: `track` (membership and killing) always, `memory` and `cpu` where a limit is asked for."""
        if not order.cgroup:
            return
        track = Path(f"{order.cgroup}-{group_tag(attempt_folder)}")
        self._folders["track"] = track
        for use, asked in (("memory", self._memory_mib), ("cpu", self._cpus)):
            if not asked:
                continue
            if use in cgroup_mounts.passed_down(track.parent):
                self._folders[use] = track
            elif base := cgroup_mounts.v1_base(use):
                self._folders[use] = Path(base) / track.name

    @classmethod
    def none(cls, order: Order, attempt_folder: Path) -> AttemptCgroup:
        """Returns an attempt's group that does nothing, for a host that does not permit groups after all."""
        return cls(msgspec.structs.replace(order, cgroup=""), attempt_folder)

    def __bool__(self) -> bool:
        return bool(self._folders)

    @property
    def limits_memory(self) -> bool:
        return "memory" in self._folders

    @property
    def cpu_stat(self) -> Path | None:
        """Where the kernel counts the ranks' processor time (v2), if they are in a group of their own."""
        track = self._folders.get("track")
        path = track / RANKS / "cpu.stat" if track is not None else None
        return path if path is not None and path.exists() else None

    def make(self) -> None:
        """Create both leaves and set the limits on `ranks`.

        Raises:
            OSError: the host does not permit what `find_cgroups` found possible.
        """
        for folder in self._distinct():
            for leaf in (SUPERVISOR, RANKS):
                (folder / leaf).mkdir(parents=True, exist_ok=True)
            cgroup_mounts.pass_down(folder)
        if "memory" in self._folders:
            _limit_memory(self._folders["memory"] / RANKS, self._memory_mib * 1024 * 1024)
        if "cpu" in self._folders:
            _limit_cpu(self._folders["cpu"] / RANKS, self._cpus)
        if self._folders and self._regions and self._device_mib is not None:
            self.problem = _limit_devices(self._folders["track"] / RANKS, self._regions, self._device_mib)
            self.limits_device_memory = not self.problem

    def order_within(self, order: Order) -> Order:
        """What of the memory limit is left to others: torch's limit holds for each process, the group's for
        all of them together."""
        return msgspec.structs.replace(order, torch_limit_mib=None) if self.limits_device_memory else order

    def enter(self, leaf: str, pid: int = 0) -> None:
        """Move a process, 0: the calling one. Ranks do so themselves between fork and exec, so that none
        escapes; the nanny of warm ones is moved before it forks any."""
        folders = self._distinct() if leaf == RANKS else self._distinct()[:1]
        for folder in folders:
            (folder / leaf / "cgroup.procs").write_text(str(pid))

    def holds(self, leaf: str, pid: int) -> bool:
        """Whether a process is in that leaf already, wherever it counts. Raises OSError."""
        return all(
            str(pid) in (folder / leaf / "cgroup.procs").read_text().split() for folder in self._distinct()
        )

    def leave(self) -> None:
        """Move the calling process out, so that the folder can go with it."""
        if not self._folders:
            return
        base = self._folders["track"].parent
        for folder in (base.parent / cgroup_mounts.AGENT_LEAF, base, base.parent):
            try:
                (folder / "cgroup.procs").write_text("0")
            except OSError:  # Not there, or v2 lets no process into a folder that has children with limits.
                continue
            return

    def pids(self, leaf: str = RANKS) -> list[int]:
        """Processes in a leaf, zombies not among them where the kernel leaves them out."""
        if not self._folders:
            return []
        try:
            return [
                int(line) for line in (self._folders["track"] / leaf / "cgroup.procs").read_text().split()
            ]
        except OSError:
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

    def memory_kills(self) -> MemoryKills | None:
        """How often the kernel killed a process of the ranks for lack of memory; None where the kernel does
        not count."""
        folder = self._folders.get("memory", self._folders.get("track"))
        return memory_kills_in(folder / RANKS, has_limit=self.limits_memory) if folder is not None else None

    def remove(self, *, leaves: tuple[str, ...] = (RANKS, SUPERVISOR)) -> bool:
        """Remove leaves, and the attempt's folder with the last one; False while a process is still there."""
        deadline_s = time.monotonic() + _REMOVE_WAIT_S
        for folder in self._distinct():
            for leaf in leaves:
                while not _try_remove(folder / leaf):
                    if time.monotonic() > deadline_s:
                        return False
                    time.sleep(0.01)  # The kernel takes a moment to let go of an exited process.
            if len(leaves) == 2 and not _try_remove(folder):
                return False
        return True

    def _distinct(self) -> list[Path]:
        return list(dict.fromkeys(self._folders.values()))


class MemoryKills(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that the kernel has killed in a group and in those below it, for lack of memory."""

    at_limit: int
    """Because the group was at its own limit."""
    by_host: int
    """Because the host, or a group above, had no more."""


def memory_kills_in(leaf: Path, *, has_limit: bool) -> MemoryKills | None:
    """Returns the memory kills from the group's own counters. `oom_kill` counts kills whoever ran out of
    memory; whether it was the group itself is said by `oom` (v2), and shows in the most that it ever used
    (v1, whose `failcnt` newer kernels no longer count up)."""
    try:
        if (leaf / "memory.events").exists():
            events = _counters(leaf / "memory.events")
            kills, at_limit = events.get("oom_kill"), events.get("oom", 0) > 0
        else:
            kills = _counters(leaf / "memory.oom_control").get("oom_kill")
            most = int((leaf / "memory.max_usage_in_bytes").read_text())
            at_limit = most >= _AT_LIMIT * int((leaf / "memory.limit_in_bytes").read_text())
    except (OSError, ValueError):
        return None
    if kills is None:  # A kernel before 4.13.
        return None
    own = kills if has_limit and at_limit else 0
    return MemoryKills(at_limit=own, by_host=kills - own)


def _counters(path: Path) -> dict[str, int]:
    words = path.read_text().split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=False)}


def _try_remove(folder: Path) -> bool:
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


def _limit_devices(leaf: Path, regions: tuple[str, ...], limit_mib: int) -> str:
    """Why it did not work; nothing else is lost by that."""
    path = leaf / device_memory.LIMIT
    try:
        for region in regions:  # One at a time: not every kernel takes several.
            path.write_text(device_memory.line_for(region, limit_mib))
        missing = device_memory.not_in_force(path.read_text(), regions, limit_mib)
    except OSError as error:
        return f"{device_memory.LIMIT}: {error.strerror}"
    return f"{device_memory.LIMIT}: {limit_mib} MiB of {missing[0]} are not in force" if missing else ""
