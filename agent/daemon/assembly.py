"""From settings to the parts of an agent: its state folder, devices, locks, memory and configuration.

Rule: the state folder is locked before anything in it is read, so it never has two agents.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cotenant.agent.containers.runtimes import find_runtimes, offered_features
from cotenant.agent.daemon.agent_log import log
from cotenant.agent.daemon.core.edge import AgentConfig
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.spool import Spool, SpoolProblem
from cotenant.agent.daemon.supervisors import left_behind, stored_orders
from cotenant.agent.gpus import mps_edge, watchers, xid
from cotenant.agent.gpus.gpu_watch import GpuWatch, offer_devices
from cotenant.agent.host import devices, facts, folders, jobside, trees, user_files
from cotenant.agent.host.cgroups import Cgroups, device_regions, find_cgroups, sweep
from cotenant.agent.host.checkpoint_root import BadRoot, domain_of
from cotenant.agent.host.locks import DeviceLocks, LockProblem, lock_folders
from cotenant.agent.host.ports import BadPorts, first_port
from cotenant.agent.ipc.records import ContainerRuntime
from cotenant.agent.warm.pool import Pool
from cotenant.controller.domain import Device, HostId, HostReport
from cotenant.controller.system import keys, paths, sections
from cotenant.controller.system.endpoint import BadEndpoint, socket_path
from cotenant.controller.system.metrics import Endpoint, MetricsProblem, open_endpoint
from cotenant.profiler.driver import cdi, probe_client, process_info
from cotenant.profiler.driver.facts import GpuFacts
from cotenant.profiler.indicators.sources import Wanted

T = TypeVar("T")

SPOOL: Final = "spool"
ATTEMPTS: Final = "attempts"
JOBSIDE: Final = "jobside"
UNSEEN_PROCESSES: Final = (
    "this agent is in a PID namespace of its own: it cannot tell whose a process on a GPU is, and "
    "memory in use after a job counts as held until the co-tenant has ended too (`cotenant doctor`)"
)
COUNTERS_PER_PROBE: Final = 20
"""How much more often counters are read than the driver is asked who is on the GPUs; at most."""
_DAY_S: Final = 86_400.0


class AgentProblem(Exception):
    """Why the agent cannot start, in one line, and the exit code for it."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class AgentParts(msgspec.Struct, kw_only=True):
    config: AgentConfig
    memory: AgentMemory
    spool: Spool
    locks: DeviceLocks
    attempts: Path
    endpoint: str
    key: keys.KeyFile | None = None
    metrics: Endpoint | None = None
    """Listening, and not answering yet."""
    warnings: list[str] = []
    watch: GpuWatch | None = None
    """None: there is no GPU that works."""
    warm: Pool | None = None
    """None: every attempt starts cold."""
    first_word_s: float = 2.0
    """Of a warm start."""
    trees_bytes_max: int = 4096 * 1024 * 1024
    """Of packed trees that are kept."""
    user_share_mib: int = 0
    """Of the state folder's disk; 0: the usual share."""
    mps: mps_edge.Mps | None = None
    """Its daemons; None: no device here is shared through MPS."""
    runtimes: tuple[ContainerRuntime, ...] = ()
    """The programs that start containers here."""


def assemble(settings: sections.Settings, *, checkpoint_every_s: float | None = None) -> AgentParts:
    """Assembles the parts of an agent from its settings. `checkpoint_every_s`: only if it was set for this
    agent. Raises Problem."""
    agent = settings.agent
    warnings: list[str] = []
    host_id = _or_problem(lambda: facts.host_name(agent.host), 2)
    choice = _or_problem(lambda: devices.parse(agent.devices), 2)
    endpoint, *_ = controllers = paths.agent_endpoints(settings)
    key = _key(endpoint, agent.keys_dir, host_id)
    state_dir = paths.agent_state_dir(settings)
    _or_problem(lambda: folders.take_state_folder(state_dir), 1)
    closed = facts.closed_folder(state_dir) if key is not None else None
    if closed is not None:
        warnings.append(f"{closed} is closed to other users: {facts.OPEN_ONE}")
    token = _or_problem(lambda: folders.token_in(state_dir), 1)
    metrics = _or_problem(lambda: open_endpoint(settings.metrics.agent_listen, "metrics.agent_listen"), 2)
    warnings += [metrics.warning] if metrics is not None and metrics.warning else []
    inventory = _inventory(agent, choice, host_id, in_cluster=key is not None)
    warnings += [inventory.note] if inventory.note else []
    warnings += [UNSEEN_PROCESSES] if inventory.gpus and not process_info.sees_host_processes() else []
    groups = find_cgroups()
    cgroup_root = _groups_for_jobs(groups, warnings)
    regions = _device_regions(groups, inventory.gpus, device_regions(), warnings)
    inventory = _add_limits(inventory, regions if cgroup_root else {})
    attempts = state_dir / ATTEMPTS
    locks = DeviceLocks(_or_problem(lock_folders, 1), left_behind(attempts, inventory.devices))
    watch = _watch(settings, inventory, state_dir, attempts, warnings)
    root = paths.checkpoint_root(settings).absolute()
    ready = offer_devices(inventory.devices, locks, watch.conditions() if watch is not None else None)
    mps = _or_problem(
        lambda: mps_edge.prepare(
            settings.mps, ready, inventory.gpus, state_dir=state_dir, attempts=attempts, owner=token
        ),
        1,
    )
    warnings += mps.said
    ports = _ports(agent, endpoint, state_dir, locks)
    copies = str(state_dir / trees.TREES / "copies")
    uuids = [each.local for each in mps.devices if each.kind == "cuda" and each.healthy]
    runtimes = find_runtimes(no_names=cdi.why_no_names(uuids))
    report = _report(agent, host_id, mps.devices, _domain(root, host_id, warnings), ports, copies, runtimes)
    spool, memory = _load_remembered(state_dir / SPOOL, warnings)
    config = _config(
        settings,
        report,
        controllers,
        mps,
        checkpoint_root=str(root),
        checkpoint_every_s=checkpoint_every_s,
        jobside_path=str(_job_side(state_dir / JOBSIDE, attempts)),
        cgroup_root=cgroup_root,
        device_regions=regions,
    )
    return AgentParts(
        config=config, memory=memory, spool=spool, locks=locks, attempts=attempts, endpoint=endpoint, key=key,
        metrics=metrics, warnings=warnings, watch=watch, mps=mps if mps.setup.specs else None,
        warm=_pool(settings), first_word_s=settings.launch.first_word_s, runtimes=runtimes,
        user_share_mib=agent.user_share_mib, trees_bytes_max=settings.snapshot.host_max_mib * 1024 * 1024,
    )  # fmt: skip


def _ports(agent: sections.AgentSettings, endpoint: str, state_dir: Path, locks: DeviceLocks) -> int:
    """The first one of its gangs'."""
    alone = socket_path(endpoint) is not None and not agent.address
    return _or_problem(
        lambda: first_port(
            agent.port_first,
            agent.port_count,
            alone=alone,
            uid=os.geteuid(),
            folder=state_dir,
            take=locks.take,
        ),
        2,
    )


def _load_remembered(path: Path, warnings: list[str]) -> tuple[Spool, AgentMemory]:
    spool = Spool(path)
    notes = _or_problem(spool.load, 1)
    if spool.damaged:
        warnings.append(f"{path} was damaged in {spool.damaged} places; what could be read is kept")
    return spool, AgentMemory(notes)


def _inventory(
    agent: sections.AgentSettings, choice: devices.DeviceChoice, host_id: HostId, *, in_cluster: bool
) -> devices.Inventory:
    """A server whose driver is not there yet, such as in the middle of its boot, tries again (its unit does)
    instead of offering its cores in place of GPUs."""
    return _or_problem(
        lambda: devices.find(
            choice,
            host_id,
            facts.usable_cores(),
            facts.memory_mib(),
            slot_memory_mib=agent.slot_memory_mib,
            oversubscribe=agent.oversubscribe,
            stand_in=not in_cluster,
            whole_host=not (agent.allocation or process_info.runs_in_container())
            and process_info.sees_host_processes(),
            driver=lambda: probe_client.driver_facts(say=log),
        ),
        6,
    )


def _report(
    agent: sections.AgentSettings,
    host_id: HostId,
    offered_devices: tuple[Device, ...],
    checkpoint_domain: str,
    port_first: int,
    copies: str,
    runtimes: tuple[ContainerRuntime, ...],
) -> HostReport:
    containers = offered_features(runtimes, has_gpus=any(each.kind == "cuda" for each in offered_devices))
    return HostReport(
        host_id=host_id,
        devices=offered_devices,
        features=tuple(dict.fromkeys((*agent.features, *containers))),
        cpus=len(facts.usable_cores()),
        memory_mib=facts.memory_mib(),
        address=agent.address or "127.0.0.1",
        port_first=port_first,
        port_count=agent.port_count,
        checkpoint_domain=checkpoint_domain,
        version=_version(),
        allocation=agent.allocation,
        leaves_unix_s=_leaves_unix_s(agent),
        leave_grace_s=agent.leave_grace_s,
        copies=copies,
        container_note=next((f"{each.name}: {each.no_gpus}" for each in runtimes if each.no_gpus), ""),
    )


def _leaves_unix_s(agent: sections.AgentSettings) -> float:
    try:
        return float(agent.leaves_at or 0.0)
    except ValueError:
        raise AgentProblem(
            f"agent.leaves_at must be seconds since 1970, got {agent.leaves_at!r}", 2
        ) from None


def _config(
    settings: sections.Settings,
    report: HostReport,
    controllers: tuple[str, ...],
    mps: mps_edge.Mps,
    *,
    checkpoint_root: str,
    checkpoint_every_s: float | None,
    jobside_path: str,
    cgroup_root: str,
    device_regions: dict[str, str],
) -> AgentConfig:
    agent = settings.agent
    return AgentConfig(
        report=report,
        settings=agent,
        session=uuid.uuid4().hex,
        uid=os.geteuid(),
        controllers=controllers,
        checkpoint_root=checkpoint_root,
        checkpoint_every_s=checkpoint_every_s,
        saves_scripts=settings.checkpoint.scripts == "auto",
        jobside_path=jobside_path,
        cgroup_root=cgroup_root,
        device_regions=device_regions,
        mps_percentage=settings.mps.active_thread_percentage,
        prune_after_s=agent.prune_after_days * _DAY_S,
        keep_checkpoints_s=settings.checkpoint.keep_days * _DAY_S,
        mps_runtime=mps.setup.runtime,
        mps_host_devices=mps.setup.host_devices,
        indicators=Wanted(
            source=settings.profiler.source,
            dcgm=settings.profiler.dcgm,
            exporter=settings.profiler.exporter,
            every_s=agent.probe_s / COUNTERS_PER_PROBE,
        ),
        indicators_every_s=settings.metrics.every_s,
    )


def _pool(settings: sections.Settings) -> Pool | None:
    launch = settings.launch
    return (
        Pool(memory_mib=facts.memory_mib(), share=launch.warm_memory_percent / 100) if launch.warm else None
    )


def _watch(
    settings: sections.Settings,
    inventory: devices.Inventory,
    state_dir: Path,
    attempts: Path,
    warnings: list[str],
) -> GpuWatch | None:
    if not any(device.kind == "cuda" and device.healthy for device in inventory.devices):
        return None
    return GpuWatch(
        inventory.devices,
        state_dir=state_dir,
        attempts=attempts,
        log=warnings.append,
        foreign=settings.agent.foreign,
        busy=inventory.busy,
        unlisted=process_info.unlisted_users(inventory.gpus),
        timing=watchers.Timing(probe_s=settings.agent.probe_s),
        tries_cuda=True,
    )


def _or_problem(make: Callable[[], T], code: int) -> T:
    """What `make` returns, or its trouble as a Problem with this exit code."""
    try:
        return make()
    except (
        facts.BadHostName,
        BadPorts,
        devices.BadDevices,
        devices.NotThisHost,
        LockProblem,
        MetricsProblem,
        SpoolProblem,
        folders.StateProblem,
        paths.PathError,
    ) as error:
        raise AgentProblem(str(error), code) from None
    except OSError as error:
        raise AgentProblem(f"{error.filename or ''}: {error.strerror or error}", code) from None


def _key(endpoint: str, keys_dir: str, host_id: HostId) -> keys.KeyFile | None:
    """The key for a TCP endpoint; a Unix socket needs none."""
    try:
        if socket_path(endpoint) is not None:
            return None
        if not keys_dir:
            raise AgentProblem(f"{endpoint} needs keys: set agent.keys_dir to what `cotenant init` made", 2)
        return keys.find_key(Path(keys_dir).expanduser(), host=host_id)
    except BadEndpoint as error:
        raise AgentProblem(str(error), 2) from None
    except keys.KeyProblem as error:
        raise AgentProblem(str(error), 4) from None


# --- The state folder ------------------------------------------------------------------------------


def _job_side(base: Path, attempts: Path) -> Path:
    try:
        folder = jobside.prepare_jobside(base)
    except (jobside.NoJobSide, OSError) as error:
        raise AgentProblem(str(error)) from None
    in_use = {Path(order.jobside_path) for order in stored_orders(attempts)}
    jobside.remove_other_jobsides(base, {folder, *in_use})
    return folder


# --- The host --------------------------------------------------------------------------------------


def _domain(root: Path, host_id: HostId, warnings: list[str]) -> str:
    if (where := user_files.find_exposed(root)) is not None:
        warnings.append(f"others than root can change {where}, which is on the way to checkpoint.root")
    try:
        return domain_of(root, host_id)
    except BadRoot as error:
        warnings.append(str(error))
        return ""


def _groups_for_jobs(groups: Cgroups, warnings: list[str]) -> str:
    sweep(groups)
    if groups.why_not:
        warnings.append(f"{groups.why_not}: limits are watched, not enforced by the kernel")
    return groups.track


def _device_regions(
    groups: Cgroups, gpus: Sequence[GpuFacts], regions: Sequence[tuple[str, str]], warnings: list[str]
) -> dict[str, str]:
    """Returns, by UUID, where the kernel can limit a job's device memory."""
    by_bus = {xid.bus_address(bus): region for bus, region in regions}
    found = {
        gpu.uuid: by_bus[xid.bus_address(gpu.bus)]
        for gpu in gpus
        if gpu.bus and xid.bus_address(gpu.bus) in by_bus
    }
    if found and not groups.device_memory:
        warnings.append(
            "the kernel could limit jobs' device memory (cgroup dmem) and this agent may not use that: "
            "MPS and torch limit it, as elsewhere"
        )
        return {}
    return found


def _add_limits(inventory: devices.Inventory, regions: Mapping[str, str]) -> devices.Inventory:
    """The devices say whether the kernel limits what a job takes of them."""
    known = (
        msgspec.structs.replace(
            each, limits_jobs=each.local in regions, divides=each.local in regions or each.divides
        )
        for each in inventory.devices
    )
    return msgspec.structs.replace(inventory, devices=tuple(known))


def _version() -> str:
    try:
        return metadata.version("cotenant")
    except metadata.PackageNotFoundError:
        return ""
