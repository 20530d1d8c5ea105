"""What surrounds the GPUs, judged: agent, groups, limits, disks, torch, network cards; what MPS can do here,
and how it will be used. Pure, from `DoctorFacts`.

Rule: as in `gpu_checks`: what is unknown is left out, and what is not ok says what to do. Numbers that were
chosen, not measured, say why beside them. Every choice about MPS has its reason. Where it does not work,
co-tenants time-slice, and that is said: nothing else depends on it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final

from cotenant.controller.cli.doctor import enabling
from cotenant.controller.cli.doctor.check import Check, CheckResult, DoctorFacts
from cotenant.controller.cli.doctor.containers import QUEUES
from cotenant.controller.cli.doctor.enabling import EnablingStep
from cotenant.controller.cli.doctor.surroundings import DEFAULT_PIPES, Folder, SeenProcess, Torch, unit_of
from cotenant.controller.domain import HostState
from cotenant.controller.present.units import plural, size
from cotenant.controller.system.paths import NETWORK_DISKS
from cotenant.mps.detection import verdict

FREE_MIB_MIN: Final = 2048
"""Room for a checkpoint of a small model; below 32 MiB the controller refuses work."""
STATE_FREE_MIB_MIN: Final = 256
FREE_FILES_MIN: Final = 1000
OPEN_FILES_MIN: Final = 4096
"""A data loader opens some files per worker and batch; 1024, the usual default, is what people run out of."""
LOCKED_KIB_MIN: Final = 1024 * 1024
"""NCCL over InfiniBand registers (locks) its buffers; the usual defaults are 64 KiB and 8 MiB."""
VOLTA_LAST_CUDA: Final = 12
"""CUDA 13 has no code for GPUs before Turing, says its release note."""
TURING: Final = (7, 5)
AGENTS_NAMED_MAX: Final = 4

UNTIL_THEN: Final = "until then co-tenants time-slice"
PER_DEVICE: Final = (
    "one daemon per device (mps.mode = per-device): gangs are LOCAL_RANK 0, without NCCL's direct transports"
)
BY_CLIENTS: Final = "by MPS, or by torch where jobs time-slice"
PER_HOST: Final = "one daemon for all devices, of each user: LOCAL_RANK and NCCL as without MPS (mps.mode)"


def torch(facts: DoctorFacts) -> Check:
    """Whether what jobs train with was built for this driver and these GPUs."""
    found = facts.around.torch
    if found is None:
        return Check("torch", "ok", "not in this environment: jobs bring their own")
    where = f" in {found.place}" if found.place else ""
    said = f"{found.version}{where}"
    if _number(found.version) < (2, 5):
        return Check("torch", "warn", said, "checkpoint and gradaccum need torch 2.5 or newer")
    gpus = [gpu for gpu in facts.driver.gpus if not gpu.problem]
    if not gpus:
        return Check("torch", "ok", said)
    problem = _torch_problem(found, facts)
    if problem is not None:
        return Check("torch", "warn", f"{said} {problem.todo}", problem.command)
    assert found.cuda is not None
    return Check("torch", "ok", "{}, built for CUDA {}.{}".format(said, *found.cuda))


def _torch_problem(torch: Torch, facts: DoctorFacts) -> EnablingStep | None:
    """What is wrong, and what to install instead, since no one command is right for every environment."""
    serves = facts.driver.cuda
    if torch.cuda is None:
        most = "" if serves is None else f" (CUDA {serves[0]} at most)"
        return EnablingStep(
            "has no CUDA: its jobs do not see the GPUs", f"install torch built for CUDA{most} there"
        )
    if serves is not None and torch.cuda[0] > serves[0]:
        what = "was built for CUDA {}.{}, the driver serves {}.{} at most".format(*torch.cuda, *serves)
        return EnablingStep(
            f"{what}: it does not see the GPUs",
            f"install a newer driver, or torch built for CUDA {serves[0]}",
        )
    old = [g for g in facts.driver.gpus if g.capability is not None and g.capability < TURING]
    if old and torch.cuda[0] > VOLTA_LAST_CUDA:
        names = ", ".join(sorted({gpu.name for gpu in old}))
        return EnablingStep(
            f"was built for CUDA {torch.cuda[0]}, which has no code for {names}",
            "install torch built for CUDA 12.6 there",
        )
    return None


def _number(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def agent(facts: DoctorFacts) -> Check:
    """Whether one runs, and whether its controller lets it in."""
    running, link, here = facts.around.agent, facts.link, facts.here
    who = f"process {running.pid} of {running.user}" if running is not None else "none runs here"
    if here is not None and (link is None or not link.sure):  # It knows; of a key that is not ours we do not.
        named = f"{who}; " if running is not None else ""
        found = f"{named}the controller has this host as {here.host}, which is {here.state.value}"
        if here.state is HostState.OK:
            return Check("agent", "ok", found)
        return Check("agent", "warn", found, "see what is said of it there", "cotenant nodes")
    if facts.nodes is not None and link is None and running is None:
        return Check("agent", "ok", "this machine is no host of your controller: `up` or `agent` adds it")
    if link is None and running is not None and facts.nodes is not None:
        found = f"{who}; the controller does not have this host: it starts, or it ends again and again"
        return Check("agent", "warn", found, "look at its log", "cotenant service status")
    if link is None:  # It would use the user's own socket.
        return Check("agent", "ok", who if running else f"{who}: `run` and `up` start one")
    if link.why:
        return Check("agent", "fail" if link.sure else "warn", f"{who}; {link.why}", link.todo, link.command)
    if running is None:
        step = enabling.start_agent(facts.files)
        return Check("agent", "fail", f"{who}, and {link.endpoint} would accept it", step.todo, step.command)
    return Check("agent", "ok", f"{who}; {link.endpoint} accepts this host's key")


def other_agents(facts: DoctorFacts) -> Check | None:
    """Agents of other controllers, by owner: the other checks do not concern them."""
    others = facts.around.other_agents
    if not others:
        return None
    named = ", ".join(f"process {each.pid} of {each.user}" for each in others[:AGENTS_NAMED_MAX])
    more = f" and {len(others) - AGENTS_NAMED_MAX} more" if len(others) > AGENTS_NAMED_MAX else ""
    return Check("others' agents", "ok", f"{named}{more}: for controllers of their own, with their devices")


def cgroups(facts: DoctorFacts) -> Check:
    """Checks the cgroups: without a group of their own, jobs have no memory limit and share the agent's
    fate."""
    group = facts.around.cgroup
    if group.version == 2:
        if group.ours:
            return Check("cgroups", "ok", f"v2, {group.path or '/'} is ours to divide")
        todo = (
            "run the agent from a unit with Delegate=yes (`cotenant service install`); until then limits on "
        )
        return Check(
            "cgroups",
            "warn",
            f"v2, but {group.path} belongs to someone else",
            f"{todo}main memory are watched, not enforced",
        )
    if group.writable:
        return Check("cgroups", "ok", f"v1 with {', '.join(group.writable)}")
    which = "v1, and none of them is ours" if group.version == 1 else "none that we may use"
    return Check(
        "cgroups",
        "warn",
        which,
        "limits on main memory are then watched, not enforced; an agent of root's may use them",
    )


def survival(facts: DoctorFacts) -> Check:
    """Checks that jobs survive, as promise 13 says: what ends the agent must not end its jobs."""
    running = facts.around.agent
    own = running.cgroup if running else facts.around.cgroup.path
    who = f"the agent (process {running.pid})" if running else "an agent started here"
    unit = unit_of(own)
    if unit.endswith(".service") and running:
        mode = running.kill_mode
        if mode not in ("process", "none", ""):
            found = f"{who} is in {unit} with KillMode={mode}: a restart ends its jobs"
            step = enabling.keep_jobs(unit, facts.files)
            return Check("survival", "fail", found, step.todo, step.command)
        return Check("survival", "ok", f"{who} is in {unit}" + (f", KillMode={mode}" if mode else ""))
    if unit.startswith("session-") and not facts.around.lingers:
        todo = "let what you start outlive your login, or run it as a service (`cotenant service install`)"
        found = f"{who} is in {unit}: logging out may end its jobs"
        return Check("survival", "warn", found, todo, "loginctl enable-linger")
    return Check("survival", "ok", f"{who} is in {own or 'no cgroup'}; jobs get sessions of their own")


def fork_servers(facts: DoctorFacts) -> Check | None:
    """What is kept ready for warm starts, and its cost."""
    kept = facts.around.fork_servers
    if not kept:
        return None
    mib = sum(each.memory_mib for each in kept)
    users = ", ".join(sorted({each.user for each in kept}))
    return Check("warm starts", "ok", f"{plural(len(kept), 'fork server')} of {users}: {size(mib)} resident")


def limits(facts: DoctorFacts) -> Check | None:
    """What jobs inherit from their agent."""
    found = facts.around.limits
    whose = "the agent's" if facts.around.agent else "an agent that is started here has"
    low = []
    if found.open_files is not None and found.open_files < OPEN_FILES_MIN:
        low.append(f"{found.open_files} open files (data loaders run out of them)")
    if facts.around.infiniband and found.locked_kib is not None and found.locked_kib < LOCKED_KIB_MIN:
        low.append(f"{size(found.locked_kib / 1024)} of locked memory (NCCL over InfiniBand needs more)")
    if not low:
        return Check("limits", "ok", "open files and locked memory suffice")
    running = facts.around.agent
    unit = unit_of(running.cgroup) if running else ""
    step = enabling.raise_limits(unit if unit.endswith(".service") else "", facts.files)
    return Check("limits", "warn", f"{whose} {' and '.join(low)}", step.todo, step.command)


def settings_files(facts: DoctorFacts) -> Check | None:
    """Where the settings come from, and who else may change them."""
    files = facts.around.settings
    if not files:
        return None
    loose = [each.path for each in files if each.open_to_others]
    if loose:
        step = enabling.close_files(loose, facts.files)
        found = f"others may write {', '.join(loose)}: whoever can decides what the agent does"
        return Check("settings", "fail", found, step.todo, step.command)
    closed = [each.path for each in files if not each.readable]
    if closed:
        found = f"you may not read {', '.join(closed)}; the checks go without them"
        return Check("settings", "warn", found, "ask as root, or open them: keys are not in there", "")
    return Check("settings", "ok", ", ".join(each.path for each in files))


def folders(facts: DoctorFacts) -> list[Check]:
    return [_folder(each) for each in facts.around.folders]


def _folder(folder: Folder) -> Check:
    verdict: CheckResult
    name, setting = folder.role, folder.setting
    if not folder.writable:
        return Check(name, "fail", f"{folder.exists} is not writable for you", f"set {setting}")
    where = folder.path if folder.path == folder.exists else f"{folder.path} (not there yet)"
    if folder.filesystem in NETWORK_DISKS and name != "checkpoints":
        verdict = "fail" if name == "journal" else "warn"
        found = f"{where} lies on a network disk ({folder.filesystem}): locks and files there do not last"
        return Check(name, verdict, found, f"set {setting} to a local disk")
    if folder.free_files is not None and folder.free_files < FREE_FILES_MIN:
        found = f"{where}: room for {plural(folder.free_files, 'more file')} only (inodes)"
        return Check(name, "fail", found, f"remove files there, or set {setting} to another disk")
    least = FREE_MIB_MIN if name == "checkpoints" else STATE_FREE_MIB_MIN
    if folder.free_mib is not None and folder.free_mib < least:
        verdict = "fail" if folder.free_mib < least // 8 else "warn"
        found = f"{where}: only {size(folder.free_mib)} free"
        return Check(name, verdict, found, f"make room, or set {setting} to a larger disk")
    disk = f" on {folder.filesystem}" if folder.filesystem in NETWORK_DISKS else ""
    return Check(name, "ok", f"{where}{disk}, {size(folder.free_mib)} free")


def container(facts: DoctorFacts) -> Check | None:
    """Whether a job with `--image` can start here."""
    tried = facts.container
    if tried is None:
        return None
    if not tried.said and tried.program == "podman" and facts.no_names:
        found, _, command = facts.no_names.partition(": ")
        todo = f"images get no GPUs here until it names them; then restart the agent: {command}"
        return Check("container", "warn", f"podman gives containers no GPUs: {found}", todo)
    if not tried.said:
        how = "starts a container" if tried.is_tried else "is here; ask as a user whose jobs have images"
        return Check("container", "ok", f"{tried.program} {how}")
    todo = f"jobs with --image fail here until {tried.program} starts one: see docs/containers.md"
    if QUEUES in tried.said:
        todo = f"as root: mkdir -p {QUEUES} && mount -t mqueue mqueue {QUEUES}"
    return Check("container", "warn", f"{tried.program} starts none: {tried.said}", todo)


def mps_neighbours(facts: DoctorFacts) -> Check | None:
    """MPS daemons that are not ours, and what one has left where CUDA looks by default. Our GPU jobs look
    only where their agent says."""
    others, left = facts.around.mps_daemons, facts.files.mps_left_by
    if not facts.driver.gpus or not (others or left):
        return None
    if not others:
        found = f"{DEFAULT_PIPES} is left over from a daemon of {left}: none listens there"
        return Check("other MPS", "ok", f"{found}, and no GPU job of ours looks there")
    words = ", ".join(f"pid {each.pid} of {each.user or 'somebody'} ({_pipes(each)})" for each in others)
    found = (
        f"MPS daemons that are not ours: {words}: no GPU job of ours becomes their client, they take turns; "
        f"other programs become one without asking ({DEFAULT_PIPES}); and a GPU that they hold in "
        "EXCLUSIVE_PROCESS mode is closed to us"
    )
    step = enabling.quit_mps(others[0], facts.files)
    return Check("other MPS", "warn", found, step.todo, step.command)


def _pipes(daemon: SeenProcess) -> str:
    return f"{daemon.pipes or 'its pipe directory cannot be read'}, since {daemon.since}"


def dcgm_neighbours(facts: DoctorFacts) -> Check | None:
    """Two who watch profiling counters get in each other's way."""
    engines = facts.around.hostengines
    if len(engines) < 2:
        return None
    words = ", ".join(f"{each.words[0].rpartition('/')[2]} (pid {each.pid})" for each in engines)
    todo = "keep one: let the exporter ask the engine (dcgm-exporter -r localhost:5555)"
    return Check("DCGM twice", "warn", f"{words}: each changes what the other measures", todo)


def network_cards(facts: DoctorFacts) -> Check | None:
    """InfiniBand cards reach GPU memory by a module, or by DMA-BUF; without either NCCL copies through main
    memory."""
    cards = facts.around.infiniband
    if not cards or not facts.driver.gpus:
        return None
    names = ", ".join(cards[:4]) + (f" and {len(cards) - 4} more" if len(cards) > 4 else "")
    if facts.around.peer_memory:
        return Check("InfiniBand", "ok", f"{names}; nvidia_peermem is loaded")
    step = enabling.load_peer_memory(facts.files)
    found = f"{names}; nvidia_peermem is not loaded: unless NCCL finds DMA-BUF, gangs over hosts are slow"
    return Check("InfiniBand", "warn", found, step.todo, step.command)


HOST_CHECKS: Final[tuple[Callable[[DoctorFacts], Check | None], ...]] = (
    mps_neighbours,
    dcgm_neighbours,
    network_cards,
    cgroups,
    survival,
    other_agents,
    fork_servers,
    container,
    limits,
    settings_files,
)


def mps(facts: DoctorFacts) -> Check | None:
    """None on a host without GPUs."""
    alive = [gpu for gpu in facts.driver.gpus if not gpu.problem and not gpu.mig]
    if not alive or facts.mps is None:  # One in MIG mode is not offered at all: `MIG` has said so.
        return None
    mode = facts.loaded.settings.mps.mode
    if mode == "off":
        return Check("MPS", "ok", "switched off (mps.mode = off): co-tenants time-slice")
    found = verdict(facts.mps)
    if not found.usable:
        if facts.mps.control_path is None and facts.around.wsl:
            todo = "never install a Linux driver there: it breaks the GPU; co-tenants time-slice"
            return Check("MPS", "ok", f"none: this is WSL, whose driver is Windows's and brings none; {todo}")
        if facts.mps.control_path is None:
            step = enabling.install("mps", facts.files)
            return Check("MPS", "warn", f"none: {found.reason}", f"{step.todo}; {UNTIL_THEN}", step.command)
        return Check("MPS", "warn", f"none: {found.reason}", UNTIL_THEN)
    refused = [(gpu, answer.reason) for gpu in alive if not (answer := verdict(facts.mps, gpu)).usable]
    if len(refused) == len(alive):
        return Check("MPS", "warn", f"none: {refused[0][1]}", "co-tenants time-slice")
    choice = PER_DEVICE if mode == "per-device" else PER_HOST
    words = f"{found.reason}; {choice}"
    if refused:
        without = ", ".join(f"{gpu.index} ({reason.replace(gpu.uuid, 'it')})" for gpu, reason in refused)
        return Check("MPS", "warn", f"{words}; not on GPU {without}", "co-tenants time-slice there")
    if facts.mps.closed:
        words += f"; jobs of other accounts than root time-slice, since {facts.mps.closed} is closed to them"
        command = f"chmod o+x {shlex.quote(facts.mps.closed)}"  # Only root is told.
        return Check("MPS", "warn", words, "let them through, or set mps.runtime_dir", command)
    return Check("MPS", "ok", words)


def device_memory(facts: DoctorFacts) -> Check | None:
    """Who enforces a job's planned part of a GPU's memory. None on a host without GPUs."""
    alive = [gpu for gpu in facts.driver.gpus if not gpu.problem]
    if not alive:
        return None
    regions = facts.files.memory_regions
    if regions is None:
        return Check("memory limits", "ok", f"{BY_CLIENTS}; the kernel has no dmem controller (6.14 has)")
    if not regions:
        return Check(
            "memory limits", "ok", f"{BY_CLIENTS}; the driver gives the kernel no regions (615 does)"
        )
    where = f"{regions} of {len(alive)} GPUs" if regions < len(alive) else "all GPUs"
    if not facts.files.memory_delegated:
        step = enabling.delegate_device_memory(facts.files)
        found = f"{BY_CLIENTS}; the kernel could as well (dmem, {where}), and this group may not"
        return Check("memory limits", "warn", found, step.todo, step.command)
    return Check("memory limits", "ok", f"{BY_CLIENTS}, and by the kernel (dmem) on {where}")
