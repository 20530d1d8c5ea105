"""What surrounds the GPUs of this host: who runs here, limits, control groups, disks, torch.

Rule: it looks, and neither changes nor judges: `host_checks` judges, from these values alone. What it cannot
see is None or empty. `root` is another tree in tests.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import msgspec

from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import user_endpoint
from cotenant.controller.system.settings import LoadedSettings
from cotenant.mps.environment import PIPE_DIRECTORY
from cotenant.mps.process import CONTROL as MPS_CONTROL

SYSTEMCTL_S_MAX: Final = 5.0
WORDS_MAX: Final = 16
HOSTENGINE: Final = "nv-hostengine"
DEFAULT_PIPES: Final = "/tmp/nvidia-mps"


class SeenProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of this machine."""

    pid: int
    user: str = ""
    uid: int = -1
    words: tuple[str, ...] = ()
    pipes: str | None = None
    """The pipe directory of an MPS daemon; None: its environment cannot be read."""
    since: str = ""
    """When it started, in local time."""
    parent: int = 0
    memory_mib: float = 0.0
    """Resident memory of a fork server, shared pages included."""


class InheritedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs inherit from the agent, or would from one that is started from here."""

    open_files: int | None = None
    """None: unlimited."""
    locked_kib: int | None = None


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    user: str
    uid: int
    cgroup: str = ""
    kill_mode: str = ""
    """KillMode of its unit; empty: it has none, or systemd does not say."""


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


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    wsl: bool = False
    """Linux inside Windows: the driver is Windows's."""
    agent: Agent | None = None
    """The agent that serves our jobs."""
    other_agents: tuple[SeenProcess, ...] = ()
    limits: InheritedLimits = InheritedLimits()
    cgroup: Cgroup = Cgroup()
    lingers: bool = False
    settings: tuple[SettingsFile, ...] = ()
    folders: tuple[Folder, ...] = ()
    torch: Torch | None = None
    mps_daemons: tuple[SeenProcess, ...] = ()
    """MPS control daemons that no agent of ours has started."""
    hostengines: tuple[SeenProcess, ...] = ()
    """Processes that watch DCGM's profiling counters: host engines, and exporters with their own engine."""
    fork_servers: tuple[SeenProcess, ...] = ()
    """Fork servers that agents of this machine keep for warm starts."""
    infiniband: tuple[str, ...] = ()
    peer_memory: bool = False
    """The kernel module by which network cards reach GPU memory is loaded."""


def look_around(
    loaded: LoadedSettings,
    root: Path = Path("/"),
    seen: Sequence[SeenProcess] | None = None,
    uid: int | None = None,
    knows_us: bool | None = None,
) -> Surroundings:
    """Looks at what surrounds an agent on this machine. `seen`: the processes; all that this machine has, by
    default. `knows_us`: whether our controller has this machine as a host; None: it did not say."""
    seen = running() if seen is None else seen
    uid = os.geteuid() if uid is None else uid
    endpoints = paths.agent_endpoints(loaded.settings)
    # No agent of root's comes to a socket that is this account's alone, unless our controller has it.
    is_own = knows_us is False or (knows_us is None and endpoints == (user_endpoint(),))
    mine = _mine(seen, (uid,) if is_own else (uid, 0), ",".join(endpoints))
    agent = _agent(mine, root)
    whose = str(agent.pid) if agent else "self"
    runtime = _mps_runtime(loaded)
    return Surroundings(
        wsl="microsoft" in _text(root / "proc/sys/kernel/osrelease").lower(),
        agent=agent,
        other_agents=tuple(each for each in seen if _is_agent(each) and each is not mine),
        limits=limits(_text(root / "proc" / whose / "limits")),
        cgroup=_cgroup(root, whose, agent),
        lingers=(root / "var/lib/systemd/linger" / os.environ.get("USER", "-")).is_file(),
        settings=tuple(_settings(loaded, root)),
        folders=tuple(_folders(loaded, root)),
        torch=_torch(root, os.environ),
        mps_daemons=tuple(each for each in seen if _is(each, MPS_CONTROL) and not _is_ours(each, runtime)),
        hostengines=tuple(each for each in seen if _is(each, HOSTENGINE, "dcgm-exporter")),
        fork_servers=tuple(
            each
            for each in seen
            if _is_fork_server(each) and each.parent in {known.pid for known in seen if _is_agent(known)}
        ),
        infiniband=tuple(sorted(each.name for each in _entries(root / "sys/class/infiniband"))),
        peer_memory=any((root / "sys/module" / name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem")),
    )


# --- What texts mean: pure ----------------------------------------------------------------------------


def limits(text: str) -> InheritedLimits:
    """The limits that a process inherits, from /proc/PID/limits, whose columns are two spaces apart."""
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        fields = re.split(r"\s{2,}", line.strip())
        if len(fields) >= 3:
            found[fields[0]] = int(fields[1]) if fields[1].isdigit() else None
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


def filesystem(path: str, mounts: str) -> str:
    """The kind of the file system that holds a path, from /proc/self/mounts."""
    best, kind = "", ""
    for line in mounts.split("\n"):
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape", errors="replace")
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def torch_of(version_file: str, place: str = "") -> Torch | None:
    """The torch that the text of `torch/version.py` describes, which says what it was built for. Importing it
    takes seconds."""
    version = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", version_file, re.MULTILINE)
    if version is None:
        return None
    cuda = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", version_file, re.MULTILINE)
    return Torch(version=version[1], cuda=None if cuda is None else (int(cuda[1]), int(cuda[2])), place=place)


# --- Looking ------------------------------------------------------------------------------------------


def running() -> list[SeenProcess]:
    """The running processes that some check asks for."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "username", "uids", "ppid", "create_time"]):
        words = tuple(process.info["cmdline"] or ())[:WORDS_MAX]
        each = SeenProcess(pid=process.pid, words=words)
        wanted = _is_agent(each) or _is_fork_server(each)
        if not wanted and not _is(each, MPS_CONTROL, HOSTENGINE, "dcgm-exporter"):
            continue
        uids = process.info["uids"]
        pipes = None
        memory_mib = 0.0
        with suppress(psutil.Error, OSError):
            memory_mib = process.memory_info().rss / 2**20
            pipes = process.environ().get(PIPE_DIRECTORY, DEFAULT_PIPES)
        found.append(
            SeenProcess(
                pid=process.pid,
                user=process.info["username"] or "",
                uid=-1 if uids is None else uids.real,
                words=words,
                pipes=pipes,
                since=time.strftime("%F %H:%M", time.localtime(process.info["create_time"])),
                parent=process.info["ppid"] or 0,
                memory_mib=memory_mib,
            )
        )
    return found


def _is(process: SeenProcess, *names: str) -> bool:
    return bool(process.words) and os.path.basename(process.words[0]) in names


def _is_agent(process: SeenProcess) -> bool:
    return process.words[1:3] == ("-m", "cotenant.agent")


def _is_fork_server(process: SeenProcess) -> bool:
    """Whether it is a fork server or one of its forks, which have the same command line and other parents."""
    return any("cotenant_forkserver" in word for word in process.words)


def _is_ours(daemon: SeenProcess, runtime: str) -> bool:
    """Whether it is a daemon of ours, or only a front end: a program of the same name that asks a daemon."""
    if not {"-d", "-f"} & set(daemon.words):
        return True
    return bool(runtime) and (daemon.pipes or "").startswith(runtime.rstrip("/") + "/")


def _mps_runtime(loaded: LoadedSettings) -> str:
    try:
        return str(paths.mps_runtime_dir(loaded.settings.mps))
    except paths.PathError:
        return ""


def _mine(seen: Sequence[SeenProcess], uids: Sequence[int], endpoint: str) -> SeenProcess | None:
    """The agent that serves our jobs: of these users, the first one's before the next one's, and of several
    the one of our controller. What its command line does not say it has from settings, which we assume to be
    ours."""

    def endpoint_of(process: SeenProcess) -> str:
        told = dict(pairwise(process.words))
        told |= {name: value for name, mark, value in (word.partition("=") for word in process.words) if mark}
        for flag in ("--controller", "agent.controller", "controller.endpoint"):
            if flag in told:
                return told[flag]
        return endpoint

    found = [each for each in seen if _is_agent(each) and each.uid in uids]
    return min(
        (each for each in found if endpoint_of(each) == endpoint),
        key=lambda each: uids.index(each.uid),
        default=None,
    )


def _agent(mine: SeenProcess | None, root: Path) -> Agent | None:
    if mine is None:
        return None
    group = own_group(_text(root / "proc" / str(mine.pid) / "cgroup"))
    unit = unit_of(group)
    mode = _kill_mode(unit) if unit.endswith(".service") else ""
    return Agent(pid=mine.pid, user=mine.user, uid=mine.uid, cgroup=group, kill_mode=mode)


def unit_of(group: str) -> str:
    return next((part for part in reversed(group.split("/")) if part.endswith((".service", ".scope"))), "")


def _kill_mode(unit: str) -> str:
    if shutil.which("systemctl") is None:
        return ""
    words = ["systemctl", "show", unit, "--property=KillMode", "--value"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SYSTEMCTL_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def _cgroup(root: Path, whose: str, agent: Agent | None) -> Cgroup:
    tree, path = root / "sys/fs/cgroup", own_group(_text(root / "proc" / whose / "cgroup"))
    if (tree / "cgroup.controllers").exists():
        folder = tree / path.lstrip("/")
        if agent is not None and agent.uid != os.geteuid():
            with suppress(OSError):
                return Cgroup(version=2, path=path, ours=agent.uid in (0, folder.stat().st_uid))
        return Cgroup(version=2, path=path, ours=os.access(folder, os.W_OK))
    writable = tuple(name for name in ("memory", "cpu", "pids") if os.access(tree / name, os.W_OK))
    version: Literal[0, 1] = 1 if any((tree / name).is_dir() for name in ("memory", "cpu")) else 0
    return Cgroup(version=version, path=path, writable=writable)


def _settings(loaded: LoadedSettings, root: Path) -> Iterable[SettingsFile]:
    """Settings files that were read, and those in /etc that we may not read."""
    unread = [path for path in _entries(root / "etc/cotenant") if path.suffix == ".toml"]
    for path in dict.fromkeys((*loaded.files, *sorted(unread))):
        readable = os.access(path, os.R_OK)
        if path in loaded.files or not readable:
            with suppress(OSError):
                others = bool(path.stat().st_mode & 0o022)
                yield SettingsFile(path=str(path), readable=readable, open_to_others=others)


def _folders(loaded: LoadedSettings, root: Path) -> Iterable[Folder]:
    settings, mounts = loaded.settings, _text(root / "proc/self/mounts")
    yield _folder("checkpoints", "checkpoint.root", paths.checkpoint_root(settings), mounts)
    yield _folder("agent's state", "agent.state_dir", paths.agent_state_dir(settings), mounts)
    journal = paths.controller_state_dir(settings)
    if journal.exists():  # Else the controller is another machine's.
        yield _folder("journal", "controller.state_dir", journal, mounts)


def _folder(role: str, setting: str, path: Path, mounts: str) -> Folder:
    path = path.absolute()
    existing = next(each for each in (path, *path.parents) if _exists(each))
    found = Folder(role=role, setting=setting, path=str(path), exists=str(existing))
    try:
        space = os.statvfs(existing)
    except OSError:
        return found
    return msgspec.structs.replace(
        found,
        writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
        filesystem=filesystem(os.path.realpath(existing), mounts),
        free_mib=space.f_bavail * space.f_frsize // 2**20,
        free_files=space.f_favail if space.f_files else None,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # A folder on the way is closed to us, or its server is gone.
        return False


def _torch(root: Path, environ: Mapping[str, str]) -> Torch | None:
    """The torch of our own environment; else that of the environment that is active in the shell, which jobs
    will have."""
    if root == Path("/") and (spec := importlib.util.find_spec("torch")) is not None and spec.origin:
        return torch_of(_text(Path(spec.origin).with_name("version.py")))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if place := environ.get(name):
            tree = root / place.lstrip("/")
            for path in sorted(tree.glob("lib/python3*/site-packages/torch/version.py")):
                return torch_of(_text(path), place)
    return None


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[: 256 * 1024]
    except OSError:
        return ""
