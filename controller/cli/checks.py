"""What `doctor` looks at on this machine. One function per check; each looks, and changes nothing.

Rule: a check says what it found, and for anything but ok what to do. To add one, write a function that
takes `Facts` and put it into CHECKS; what is about GPUs stands in `gpu_checks` and `mps_check`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller import places
from cotenant.controller.access.endpoint import socket_path
from cotenant.controller.cli import gpu_host
from cotenant.controller.cli.asking import asking
from cotenant.controller.cli.check import Check, Facts
from cotenant.controller.cli.enabling import as_us
from cotenant.controller.cli.gpu_checks import GPU_CHECKS
from cotenant.controller.cli.mps_check import device_memory, mps
from cotenant.controller.cli.problem import Problem
from cotenant.controller.cli.screen import plural, size
from cotenant.controller.domain.cluster import HostState
from cotenant.controller.domain.settings import ProfilerSettings
from cotenant.controller.settings import Loaded
from cotenant.controller.wire.clients import GetStatus, ListNodes
from cotenant.mps import detection
from cotenant.profiler.driver.asking import driver_facts
from cotenant.profiler.driver.facts import DriverFacts
from cotenant.profiler.indicators.choice import Explanation, explain
from cotenant.profiler.indicators.sources import Wanted

CLOCK_OFF_S: Final = 5.0
DRIVER_S_MAX: Final = 30.0
"""Somebody sits and waits: less than the agent allows, which has to be right about a slow start."""
FREE_MIB_MIN: Final = 2048


def gather(loaded: Loaded, endpoint: str | None) -> Facts:
    """Everything the checks need. Changes nothing; asking the driver may take some seconds."""
    driver = driver_facts(DRIVER_S_MAX, thorough=True)
    facts = Facts(
        loaded=loaded,
        status=None,
        nodes=None,
        why_unreachable=None,
        driver=driver,
        files=gpu_host.look(),
        mps=detection.look(
            places.mps_runtime_dir(loaded.settings.mps), allowed=loaded.settings.mps.mode != "off"
        ),
        indicators=_indicators(loaded.settings.profiler, driver),
    )
    try:
        with asking(endpoint, timeout_s=3.0) as client:
            status, nodes = client.ask(GetStatus()), client.ask(ListNodes())
        return msgspec.structs.replace(facts, status=status, nodes=nodes)
    except Problem as problem:
        return msgspec.structs.replace(facts, why_unreachable=problem)


def _indicators(profiler: ProfilerSettings, driver: DriverFacts) -> Explanation | None:
    uuids = [gpu.uuid for gpu in driver.gpus if not gpu.problem]
    if not uuids:
        return None
    return explain(uuids, Wanted(source=profiler.source, dcgm=profiler.dcgm, exporter=profiler.exporter))


def run_all(facts: Facts) -> list[Check]:
    """What each check says, in their order; those that do not apply here say nothing."""
    return [said for check in CHECKS if (said := check(facts)) is not None]


def python(_facts: Facts) -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", "ok", f"{version} at {sys.executable}")


def torch(_facts: Facts) -> Check:
    if importlib.util.find_spec("torch") is None:
        todo, command = "jobs bring their own; the demo needs it here", "pip install 'cotenant[train,demo]'"
        return Check("torch", "warn", "not in this environment", todo, command)
    version = importlib.metadata.version("torch")
    if tuple(int(part) for part in version.split(".")[:2]) < (2, 5):
        return Check("torch", "warn", version, "checkpoint and gradaccum need torch 2.5 or newer")
    return Check("torch", "ok", version)


def cgroups(_facts: Facts) -> Check:
    """Without a group of their own, jobs have no memory limit and share the agent's fate."""
    root = Path("/sys/fs/cgroup")
    own = own_cgroup()
    if (root / "cgroup.controllers").exists():
        folder = root / own.lstrip("/")
        if os.access(folder, os.W_OK):
            return Check("cgroups", "ok", f"v2, {own or '/'} is ours to divide")
        return Check(
            "cgroups",
            "warn",
            f"v2, but {own} belongs to someone else",
            "run the agent from a unit with Delegate=yes",
        )
    writable = [name for name in ("memory", "cpu", "pids") if os.access(root / name, os.W_OK)]
    if writable:
        return Check("cgroups", "ok", f"v1 with {', '.join(writable)}")
    return Check(
        "cgroups", "warn", "none that we may use", "limits on main memory are then watched, not enforced"
    )


def own_cgroup(pid: int | str = "self") -> str:
    """The v2 path of a process, or its systemd path under v1; empty if there is none."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for prefix in ("0::", "1:name=systemd:"):
        for line in lines:
            if line.startswith(prefix):
                return line.removeprefix(prefix)
    return ""


def socket(facts: Facts) -> Check:
    try:
        where = places.controller_endpoint(facts.loaded.settings)
        path = socket_path(where)
    except (ValueError, OSError) as error:
        return Check("socket", "fail", str(error), "set controller.endpoint")
    if path is None:
        return Check("socket", "ok", f"{where} (keys in {places.keys_dir(facts.loaded.settings)})")
    if not path.exists():
        return Check("socket", "ok", f"{path} (not there yet)")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return Check(
            "socket", "fail", f"{path} has mode {mode:o}", "who can connect is its owner", f"chmod 600 {path}"
        )
    return Check("socket", "ok", f"{path}, for you alone")


def survival(_facts: Facts) -> Check:
    """Promise 13: what ends the agent must not end its jobs."""
    running = agent_pid()
    own = own_cgroup(running or "self")
    who = f"the agent (process {running})" if running else "an agent started here"
    unit = next((part for part in reversed(own.split("/")) if part.endswith((".service", ".scope"))), "")
    if unit.endswith(".service") and running:
        mode = _kill_mode(unit)
        if mode not in ("process", "none", ""):
            todo = "set KillMode=process and Delegate=yes (examples/deploy)"
            return Check(
                "survival", "fail", f"{who} is in {unit} with KillMode={mode}: a restart ends its jobs", todo
            )
        return Check("survival", "ok", f"{who} is in {unit}" + (f", KillMode={mode}" if mode else ""))
    if unit.startswith("session-") and not _lingers():
        todo = "let what you start outlive your login, or run it as a service (examples/deploy)"
        found = f"{who} is in {unit}: logging out may end its jobs"
        return Check("survival", "warn", found, todo, "loginctl enable-linger")
    return Check("survival", "ok", f"{who} is in {own or 'no cgroup'}; jobs get sessions of their own")


def agent_pid() -> int | None:
    """An agent of this user that runs here."""
    import psutil

    for process in psutil.process_iter(["uids", "cmdline"]):
        words = process.info["cmdline"] or []
        ours = process.info["uids"] is not None and process.info["uids"].real == os.getuid()
        if ours and words[1:3] == ["-m", "cotenant.agent"]:
            return int(process.pid)
    return None


def _kill_mode(unit: str) -> str:
    import subprocess

    if shutil.which("systemctl") is None:
        return ""
    words = ["systemctl", "show", unit, "--property=KillMode", "--value"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def _lingers() -> bool:
    return Path("/var/lib/systemd/linger", os.environ.get("USER", "")).is_file()


def checkpoints(facts: Facts) -> Check:
    root = places.checkpoint_root(facts.loaded.settings)
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check("checkpoints", "fail", f"{existing} is not writable", "set checkpoint.root")
    free_mib = shutil.disk_usage(existing).free // 2**20
    if free_mib < FREE_MIB_MIN:
        return Check(
            "checkpoints", "warn", f"{size(free_mib)} free at {root}", "set checkpoint.root to a larger disk"
        )
    return Check("checkpoints", "ok", f"{root}, {size(free_mib)} free")


def shared_memory(facts: Facts) -> Check:
    """Data loaders with workers pass batches through it."""
    path = Path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK):
        return Check(
            "/dev/shm",
            "warn",
            "not usable",
            "data loaders with workers will fail; mount a tmpfs there",
            as_us("sudo mount -t tmpfs -o size=4G,mode=1777 tmpfs /dev/shm", facts.files),
        )
    total_mib = shutil.disk_usage(path).total // 2**20
    if total_mib < 512:
        todo = "data loaders with workers need more; in a container: --shm-size=4g"
        command = as_us("sudo mount -o remount,size=4G /dev/shm", facts.files)
        return Check("/dev/shm", "warn", f"only {size(total_mib)}", todo, command)
    return Check("/dev/shm", "ok", size(total_mib))


def account(facts: Facts) -> Check:
    if facts.loaded.settings.agent.shared_account:
        todo = "unset agent.shared_account, or run the agent as root"
        return Check("account", "warn", "shared_account: everybody's jobs run as you. Unsafe", todo)
    who = "root: jobs run as their own users" if os.getuid() == 0 else "you: the agent runs your jobs only"
    return Check("account", "ok", who)


def clock(facts: Facts) -> Check:
    """Durations, never clock times, cross the wire; a wrong clock only shows wrong times."""
    if facts.status is None:
        return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))
    off_s = abs(time.time() - facts.status.wall_s)
    if off_s > CLOCK_OFF_S:
        return Check(
            "clock",
            "warn",
            f"{off_s:.0f} s off the controller's",
            "use NTP on both; only shown times are wrong",
        )
    return Check("clock", "ok", "agrees with the controller's")


def controller(facts: Facts) -> Check:
    from cotenant.controller.cli.version import own_version

    if facts.status is None:
        assert facts.why_unreachable is not None  # gather sets one of the two
        why = facts.why_unreachable
        return Check("controller", "warn", why.message, why.hint or "start one with `cotenant up`")
    status = facts.status
    if status.version != own_version():
        found = f"version {status.version}, this is {own_version()}"
        return Check("controller", "warn", found, "the controller is upgraded first, then agents and users")
    return Check(
        "controller", "ok", f"{status.endpoint}, policy {status.policy}, {plural(status.hosts, 'host')}"
    )


REFUSED_MESSAGES: Final = {
    "bad_messages": "unreadable",
    "unauthenticated": "with an unknown key",
    "refused_agents": "from agents that were sent away",
}


def messages(facts: Facts) -> Check:
    """What the controller dropped. Nothing of it did any harm; many of them have a cause worth knowing."""
    if facts.status is None:
        return Check("messages", "ok", "no controller to ask")
    counters = facts.status.counters
    dropped = [f"{counters[key]} {what}" for key, what in REFUSED_MESSAGES.items() if counters.get(key)]
    if dropped:
        todo = "an older cotenant, a wrong key or a stray program; nothing of it was obeyed"
        return Check("messages", "warn", f"dropped: {', '.join(dropped)}", todo)
    return Check("messages", "ok", f"{plural(counters.get('messages', 0), 'message')}, none dropped")


def hosts(facts: Facts) -> Check:
    if facts.nodes is None:
        return Check("hosts", "ok", "no controller to ask")
    bad = [
        f"{node.report.host_id} is {node.state.value}"
        for node in facts.nodes.nodes
        if node.state is not HostState.OK
    ]
    if bad:
        return Check("hosts", "warn", ", ".join(bad[:5]), "cotenant nodes")
    if not facts.nodes.nodes:
        return Check("hosts", "warn", "no agent has joined", "cotenant agent")
    devices = [device for node in facts.nodes.nodes for device in node.report.devices]
    idle = [f"{device.device_id} ({device.note})" for device in devices if not device.healthy]
    if idle:
        return Check("hosts", "warn", f"not offered: {', '.join(idle[:5])}", "cotenant nodes")
    found = f"{plural(len(facts.nodes.nodes), 'host')}, {plural(len(devices), 'device')}"
    lonely = [
        str(node.report.host_id) for node in facts.nodes.nodes if node.report.address.startswith("127.")
    ]
    if lonely and len(facts.nodes.nodes) > 1:
        found += (
            f"; jobs over several hosts leave out {', '.join(lonely[:5])}: agent.address is not set there"
        )
    return Check("hosts", "ok", found)


CHECKS: Final[tuple[Callable[[Facts], Check | None], ...]] = (
    python,
    torch,
    *GPU_CHECKS,
    mps,
    device_memory,
    cgroups,
    survival,
    shared_memory,
    checkpoints,
    account,
    socket,
    controller,
    hosts,
    messages,
    clock,
)
