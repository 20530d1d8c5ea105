"""What surrounds the GPUs: agent, control groups, limits, disks, settings, torch, containers, network cards.

Rule: numbers that were chosen, not measured, say why beside them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from cotenant.controller.cli.doctor.check import Check, Finding, check, fail, name_some, ok, warn
from cotenant.controller.cli.doctor.containers import QUEUES
from cotenant.controller.cli.doctor.facts import Facts
from cotenant.controller.cli.doctor.fixes import fix
from cotenant.controller.cli.doctor.host_files import Folder, Torch
from cotenant.controller.cli.doctor.processes import unit_of
from cotenant.controller.domain import HostState
from cotenant.controller.present.units import plural, size
from cotenant.controller.system.paths import NETWORK_DISKS

FREE_MIB_MIN: Final = 2048
"""Room for a checkpoint of a small model; below 32 MiB the controller refuses work."""
STATE_FREE_MIB_MIN: Final = 256
FREE_FILES_MIN: Final = 1000
OPEN_FILES_MIN: Final = 4096
"""A data loader opens some files per worker and batch; 1024, the usual default, is what people run out of."""
LOCKED_KIB_MIN: Final = 1024 * 1024
"""NCCL over InfiniBand registers (locks) its buffers; the usual defaults are 64 KiB and 8 MiB."""
SHARED_MIB_MIN: Final = 512
VOLTA_LAST_CUDA: Final = 12
"""CUDA 13 has no code for GPUs before Turing, says its release note."""
TURING: Final = (7, 5)


@check("python")
def python(_facts: Facts) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return ok(f"{version} at {sys.executable}")


@check("torch")
def torch(facts: Facts) -> Finding:
    """Whether what jobs train with was built for this driver and these GPUs."""
    found = facts.torch
    if found is None:
        return ok("not in this environment: jobs bring their own")
    said = f"{found.version} in {found.place}" if found.place else found.version
    if _number(found.version) < (2, 5):
        return warn(said, "checkpoint and gradaccum need torch 2.5 or newer")
    if not facts.answering:
        return ok(said)
    if problem := _torch_problem(found, facts):
        why, todo = problem
        return warn(f"{said} {why}", todo)
    assert found.cuda is not None
    return ok("{}, built for CUDA {}.{}".format(said, *found.cuda))


def _torch_problem(torch: Torch, facts: Facts) -> tuple[str, str] | None:
    """What is wrong, and what to install instead, since no one command is right for every environment."""
    serves = facts.driver.cuda
    if torch.cuda is None:
        most = "" if serves is None else f" (CUDA {serves[0]} at most)"
        return "has no CUDA: its jobs do not see the GPUs", f"install torch built for CUDA{most} there"
    if serves is not None and torch.cuda[0] > serves[0]:
        what = "was built for CUDA {}.{}, the driver serves {}.{} at most".format(*torch.cuda, *serves)
        todo = f"install a newer driver, or torch built for CUDA {serves[0]}"
        return f"{what}: it does not see the GPUs", todo
    old = {gpu.name for gpu in facts.gpus if gpu.capability is not None and gpu.capability < TURING}
    if old and torch.cuda[0] > VOLTA_LAST_CUDA:
        why = f"was built for CUDA {torch.cuda[0]}, which has no code for {', '.join(sorted(old))}"
        return why, "install torch built for CUDA 12.6 there"
    return None


def _number(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


@check("agent")
def agent(facts: Facts) -> Finding:
    """Whether one runs, and whether its controller lets it in."""
    running, link, here = facts.agent, facts.link, facts.here
    who = f"process {running.pid} of {running.user}" if running is not None else "none runs here"
    if here is not None and (link is None or not link.sure):  # It knows; of a key that is not ours we do not.
        named = f"{who}; " if running is not None else ""
        found = f"{named}the controller has this host as {here.host}, which is {here.state.value}"
        is_well = here.state is HostState.OK
        return ok(found) if is_well else warn(found, "see what is said of it there", "cotenant nodes")
    if link is None and facts.answers.nodes is not None:
        if running is None:
            return ok("this machine is no host of your controller: `up` or `agent` adds it")
        found = f"{who}; the controller does not have this host: it starts, or it ends again and again"
        return warn(found, "look at its log", "cotenant service status")
    if link is None:  # It would use the user's own socket.
        return ok(who if running else f"{who}: `run` and `up` start one")
    if link.why:
        return Finding("fail" if link.sure else "warn", f"{who}; {link.why}", link.todo, link.command)
    if running is None:
        return fail(f"{who}, and {link.endpoint} would accept it", *fix("agent", facts))
    return ok(f"{who}; {link.endpoint} accepts this host's key")


@check("others' agents", needs="other_agents")
def other_agents(facts: Facts) -> Finding:
    """Agents of other controllers, by owner: the other checks do not concern them."""
    named = name_some([f"process {each.pid} of {each.user}" for each in facts.other_agents])
    return ok(f"{named}: for controllers of their own, with their devices")


@check("cgroups")
def cgroups(facts: Facts) -> Finding:
    """Checks the cgroups: without a group of their own, jobs have no memory limit and share the agent's
    fate."""
    group = facts.cgroup
    if group.version == 2 and group.ours:
        return ok(f"v2, {group.path or '/'} is ours to divide")
    if group.version == 2:
        return warn(
            f"v2, but {group.path} belongs to someone else",
            "run the agent from a unit with Delegate=yes (`cotenant service install`); until then limits on "
            "main memory are watched, not enforced",
        )
    if group.writable:
        return ok(f"v1 with {', '.join(group.writable)}")
    todo = "limits on main memory are then watched, not enforced; an agent of root's may use them"
    return warn("v1, and none of them is ours" if group.version == 1 else "none that we may use", todo)


@check("survival")
def survival(facts: Facts) -> Finding:
    """Checks that jobs survive, as promise 13 says: what ends the agent must not end its jobs."""
    running = facts.agent
    own = running.cgroup if running else facts.cgroup.path
    who = f"the agent (process {running.pid})" if running else "an agent started here"
    unit = unit_of(own)
    if unit.endswith(".service") and running:
        mode = running.kill_mode
        if mode not in ("process", "none", ""):
            found = f"{who} is in {unit} with KillMode={mode}: a restart ends its jobs"
            return fail(found, *fix("survival", facts, unit=unit))
        return ok(f"{who} is in {unit}" + (f", KillMode={mode}" if mode else ""))
    if unit.startswith("session-") and not facts.lingers:
        todo = "let what you start outlive your login, or run it as a service (`cotenant service install`)"
        return warn(f"{who} is in {unit}: logging out may end its jobs", todo, "loginctl enable-linger")
    return ok(f"{who} is in {own or 'no cgroup'}; jobs get sessions of their own")


@check("warm starts", needs="fork_servers")
def fork_servers(facts: Facts) -> Finding:
    """What is kept ready for warm starts, and its cost."""
    kept = facts.fork_servers
    users = ", ".join(sorted({each.user for each in kept}))
    memory = size(sum(each.memory_mib for each in kept))
    return ok(f"{plural(len(kept), 'fork server')} of {users}: {memory} resident")


@check("container")
def container(facts: Facts) -> Finding | None:
    """Whether a job with `--image` can start here."""
    tried = facts.tried_container
    if tried is None:
        return None
    if tried.said:
        todo = f"jobs with --image fail here until {tried.program} starts one: see docs/containers.md"
        if QUEUES in tried.said:
            todo = f"as root: mkdir -p {QUEUES} && mount -t mqueue mqueue {QUEUES}"
        return warn(f"{tried.program} starts none: {tried.said}", todo)
    if tried.program == "podman" and facts.no_names:
        found, _, command = facts.no_names.partition(": ")
        todo = f"images get no GPUs here until it names them; then restart the agent: {command}"
        return warn(f"podman gives containers no GPUs: {found}", todo)
    how = "starts a container" if tried.is_tried else "is here; ask as a user whose jobs have images"
    return ok(f"{tried.program} {how}")


@check("limits")
def limits(facts: Facts) -> Finding:
    """What jobs inherit from their agent."""
    found, running = facts.limits, facts.agent
    low = []
    if found.open_files is not None and found.open_files < OPEN_FILES_MIN:
        low.append(f"{found.open_files} open files (data loaders run out of them)")
    if facts.infiniband and found.locked_kib is not None and found.locked_kib < LOCKED_KIB_MIN:
        low.append(f"{size(found.locked_kib / 1024)} of locked memory (NCCL over InfiniBand needs more)")
    if not low:
        return ok("open files and locked memory suffice")
    whose = "the agent's" if running else "an agent that is started here has"
    unit = unit_of(running.cgroup) if running else ""
    what = "limits of a unit" if unit.endswith(".service") else "limits of a login"
    return warn(f"{whose} {' and '.join(low)}", *fix(what, facts, unit=unit))


@check("settings", needs="settings_files")
def settings_files(facts: Facts) -> Finding:
    """Where the settings come from, and who else may change them."""
    files = facts.settings_files
    if loose := [each.path for each in files if each.open_to_others]:
        found = f"others may write {', '.join(loose)}: whoever can decides what the agent does"
        return fail(found, *fix("settings", facts, names=shlex.join(loose)))
    if closed := [each.path for each in files if not each.readable]:
        found = f"you may not read {', '.join(closed)}; the checks go without them"
        return warn(found, "ask as root, or open them: keys are not in there")
    return ok(", ".join(each.path for each in files))


def folders(facts: Facts) -> list[Check]:
    return [Check(each.role, *_folder(each)) for each in facts.folders]


def _folder(folder: Folder) -> Finding:
    name, setting = folder.role, folder.setting
    if not folder.writable:
        return fail(f"{folder.exists} is not writable for you", f"set {setting}")
    where = folder.path if folder.path == folder.exists else f"{folder.path} (not there yet)"
    if folder.filesystem in NETWORK_DISKS and name != "checkpoints":
        found = f"{where} lies on a network disk ({folder.filesystem}): locks and files there do not last"
        return (fail if name == "journal" else warn)(found, f"set {setting} to a local disk")
    if folder.free_files is not None and folder.free_files < FREE_FILES_MIN:
        found = f"{where}: room for {plural(folder.free_files, 'more file')} only (inodes)"
        return fail(found, f"remove files there, or set {setting} to another disk")
    least = FREE_MIB_MIN if name == "checkpoints" else STATE_FREE_MIB_MIN
    if folder.free_mib is not None and folder.free_mib < least:
        found, todo = (
            f"{where}: only {size(folder.free_mib)} free",
            f"make room, or set {setting} to a larger disk",
        )
        return (fail if folder.free_mib < least // 8 else warn)(found, todo)
    disk = f" on {folder.filesystem}" if folder.filesystem in NETWORK_DISKS else ""
    return ok(f"{where}{disk}, {size(folder.free_mib)} free")


@check("DCGM twice")
def dcgm_neighbours(facts: Facts) -> Finding | None:
    """Two who watch profiling counters get in each other's way."""
    engines = facts.hostengines
    if len(engines) < 2:
        return None
    words = ", ".join(f"{each.words[0].rpartition('/')[2]} (pid {each.pid})" for each in engines)
    todo = "keep one: let the exporter ask the engine (dcgm-exporter -r localhost:5555)"
    return warn(f"{words}: each changes what the other measures", todo)


@check("InfiniBand", needs="infiniband")
def network_cards(facts: Facts) -> Finding | None:
    """InfiniBand cards reach GPU memory by a module, or by DMA-BUF; without either NCCL copies through main
    memory."""
    if not facts.gpus:
        return None
    names = name_some(facts.infiniband)
    if facts.peer_memory:
        return ok(f"{names}; nvidia_peermem is loaded")
    found = f"{names}; nvidia_peermem is not loaded: unless NCCL finds DMA-BUF, gangs over hosts are slow"
    return warn(found, *fix("peer memory", facts))


@check("/dev/shm")
def shared_memory(facts: Facts) -> Finding:
    """Data loaders with workers pass batches through it."""
    path = Path("/dev/shm")
    if not path.is_dir() or not os.access(path, os.W_OK):
        return warn("not usable", *fix("/dev/shm missing", facts))
    total_mib = shutil.disk_usage(path).total // 2**20
    if total_mib < SHARED_MIB_MIN:
        return warn(f"only {size(total_mib)}", *fix("/dev/shm small", facts))
    return ok(size(total_mib))


@check("account")
def account(facts: Facts) -> Finding:
    if facts.loaded.settings.agent.shared_account:
        todo = "unset agent.shared_account, or run the agent as root"
        return warn("shared_account: everybody's jobs run as you. Unsafe", todo)
    if facts.is_guest:
        return ok("yours: the services of this machine run your jobs as you")
    return ok(
        "root: jobs run as their own users" if os.getuid() == 0 else "you: the agent runs your jobs only"
    )
