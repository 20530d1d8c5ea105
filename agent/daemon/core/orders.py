"""From a StartAttempt to the supervisor's order, or to the reason why it cannot be obeyed here; and which of
the attempt's processes are clients of an MPS daemon, within which limits. Pure.

Rule: what the controller's ledger promised is checked again on this side of the hand-over: the devices
exist, are ours and have room.

Rule: every job on a device with a daemon is its client from the start, alone or not: what a client may take
is read when its CUDA context is made and fixed from then on, and a newcomer may come at any time. An attempt
is wholly a client or not at all; where it cannot be one, it says why and time-slices.

A process talks to one daemon. One for all devices of the host, of the job's user, is the default: every
worker sees all devices of its gang here and has its true LOCAL_RANK. With one daemon per device each worker
sees its own device alone and is LOCAL_RANK 0, as under `torchrun --virtual-local-rank`, which is said at its
start. One process with several devices has one environment, and so have the workers that a launcher starts
itself: they cannot be clients of several daemons.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

import msgspec

from cotenant.agent.daemon.core.edge import AgentConfig
from cotenant.agent.daemon.core.remembered import Attempt
from cotenant.agent.ipc.records import MpsClient, Order, RankOrder, WatchRule
from cotenant.controller.domain import Device, DeviceId, GangMember, HostId, StartAttempt
from cotenant.controller.planning import ROUNDING, cores_of
from cotenant.mps.environment import MemoryLimit, host_daemon, pipe_directory

NEVER_S: Final = 1e9
"""A shell may wait for its user as long as its time limit lets it."""


def own_part(command: StartAttempt, host_id: HostId) -> GangMember | None:
    return next((member for member in command.gang if member.host_id == host_id), None)


def objection(command: StartAttempt, config: AgentConfig, running: Iterable[Attempt]) -> str:
    """Why the attempt cannot start here, for a person; empty if it can."""
    host_id = config.report.host_id
    running = tuple(running)
    part = own_part(command, host_id)
    if command.host_id != host_id or part is None or not part.devices:
        return f"the order for job {command.job_id} names no devices of {host_id}"
    earlier = next((a for a in running if a.job_id == command.job_id), None)
    if earlier is not None:
        return f"attempt {earlier.attempt} of job {command.job_id} still runs on {host_id}"
    uid = command.launch.uid
    if config.uid not in (0, uid) and not config.settings.shared_account:
        return (
            f"the agent on {host_id} runs as uid {config.uid} and cannot run a job of uid {uid}: "
            f"run the agent as root, or set agent.shared_account (unsafe)"
        )
    return next(filter(None, (_device_objection(command, d, config, running) for d in part.devices)), "")


def _device_objection(
    command: StartAttempt, device_id: DeviceId, config: AgentConfig, running: tuple[Attempt, ...]
) -> str:
    device = next((d for d in config.report.devices if d.device_id == device_id), None)
    if device is None:
        return f"{config.report.host_id} has no device {device_id}"
    if not device.healthy:
        return f"device {device_id} is not available: {device.note}"
    if device.parent and command.launch.numbers_devices("uuid"):
        return f"{device_id} is a MIG instance, which has no index, and its job needs one (--devices-as)"
    here = [attempt for attempt in running if device_id in attempt.devices]
    who = ", ".join(attempt.job_id for attempt in here)
    if command.fraction == 1.0:
        if any(attempt.fraction < 1.0 for attempt in here):
            return f"device {device_id} is divided among jobs {who}"
        if len(here) >= device.max_tenants:
            return f"device {device_id} already has {len(here)} tenants (jobs {who})"
        return ""
    left = 1.0 - sum(attempt.fraction for attempt in here)
    if command.fraction > left + ROUNDING:
        return f"device {device_id} has {max(0.0, left):.2f} of itself left beside jobs {who}"
    if device.kind == "cpu" and len(part_cores(command, device, here)) < cores_of(
        command.fraction, len(device.cores)
    ):
        return f"device {device_id} has too few cores left beside jobs {who}"
    return ""


def part_cores(command: StartAttempt, device: Device, here: Iterable[Attempt]) -> tuple[int, ...]:
    """Returns those of a slot's cores that are to be this attempt's part: the first that no other attempt
    has."""
    assert command.fraction < 1.0
    taken = {core for attempt in here for core in attempt.cores}
    return tuple(core for core in device.cores if core not in taken)[
        : cores_of(command.fraction, len(device.cores))
    ]


def cores_for(command: StartAttempt, config: AgentConfig, running: Iterable[Attempt]) -> tuple[int, ...]:
    """The cores of an attempt that has a part of a CPU slot; empty: it has all those of its devices."""
    part = own_part(command, config.report.host_id)
    if command.fraction == 1.0 or part is None:
        return ()
    device = next(each for each in config.report.devices if each.device_id == part.devices[0])
    here = [attempt for attempt in running if device.device_id in attempt.devices]
    return part_cores(command, device, here) if device.kind == "cpu" else ()


def order_for(
    command: StartAttempt,
    secrets: dict[str, str],
    config: AgentConfig,
    checkpoint_folder: str,
    lease_s: float | None,
    *,
    cuda_processes: int = 1,
    cores: tuple[int, ...] = (),
) -> Order:
    """Returns the order to start an attempt; `objection` has said nothing. `cuda_processes`: with how many
    processes an earlier attempt's workers were seen to use their GPUs. `cores`: the attempt's part of a CPU
    slot."""
    part = own_part(command, config.report.host_id)
    assert part is not None, f"{command.job_id}: no part for {config.report.host_id}"
    by_id = {device.device_id: device for device in config.report.devices}
    devices = tuple(by_id[device_id] for device_id in part.devices)
    if cores:
        devices = tuple(msgspec.structs.replace(device, cores=cores) for device in devices)
    clients = clients_of(command, config, devices, cuda_processes)
    return Order(
        start=_apply_settings(command, config),
        secrets=secrets,
        world_size=sum(len(member.devices) for member in command.gang),
        ranks=_ranks(command, part, devices, clients),
        numbers_devices=command.launch.numbers_devices(
            "uuid" if any(device.parent for device in devices) else config.settings.devices_as
        ),
        torch_limit_mib=_torch_limit_mib(command, devices, cuda_processes),
        device_regions=_device_regions(command.memory_cap_mib, config, devices),
        mps=clients.mps,
        collective_scale=float(max(device.max_tenants for device in devices)),
        watch=watch_rule(command, config),
        notes=clients.notes,
        checkpoint_root=checkpoint_folder,
        lease_s=lease_s,
        indicators=config.indicators,
        start_deadline_s=NEVER_S if command.launch.terminal else config.settings.start_deadline_s,
        log_bytes_max=config.settings.log_bytes_max,
        network=config.settings.network,
        controller=",".join(config.controllers),
        jobside_path=config.jobside_path,
        cgroup=f"{config.cgroup_root}/{command.job_id}-a{command.attempt}" if config.cgroup_root else "",
    )


def _apply_settings(command: StartAttempt, config: AgentConfig) -> StartAttempt:
    if not config.saves_scripts:
        words = tuple(word for word in command.launch.zero_code if word != "leave")
        command = msgspec.structs.replace(
            command, launch=msgspec.structs.replace(command.launch, zero_code=words)
        )
    if config.checkpoint_every_s is None:
        return command
    return msgspec.structs.replace(command, checkpoint_every_s=config.checkpoint_every_s)


def watch_rule(command: StartAttempt, config: AgentConfig) -> WatchRule | None:
    """The job's own word, else the host's setting."""
    declared_s = 0.0 if command.launch.terminal else command.launch.watchdog_s
    if declared_s is not None:
        return WatchRule(floor_s=declared_s) if declared_s > 0 else None
    if config.settings.watchdog_floor_s <= 0:
        return None
    return WatchRule(floor_s=config.settings.watchdog_floor_s, multiple=config.settings.watchdog_multiple)


def _ranks(
    command: StartAttempt, part: GangMember, devices: tuple[Device, ...], clients: Clients
) -> tuple[RankOrder, ...]:
    uuids = tuple(device.local for device in devices if device.kind == "cuda")
    if command.launch.mode != "worker":
        cores = tuple(sorted({core for device in devices for core in device.cores}))
        return (RankOrder(rank=part.first_rank, local_rank=0, cores=cores, cuda_uuids=uuids),)
    each = clients.one_device_each
    return tuple(
        RankOrder(
            rank=part.first_rank + local,
            local_rank=0 if each else local,  # The number of its device among those that it sees.
            cores=device.cores,
            cuda_uuids=(device.local,) if each else uuids,
        )
        for local, device in enumerate(devices)
    )


def _device_regions(cap_mib: int | None, config: AgentConfig, devices: tuple[Device, ...]) -> tuple[str, ...]:
    """Returns the kernel's regions of all the attempt's devices or of none: half a limit would be taken for a
    whole one."""
    regions = [config.device_regions.get(device.local, "") for device in devices]
    if cap_mib is None or not config.cgroup_root or not all(regions):
        return ()
    return tuple(dict.fromkeys(regions))


def _torch_limit_mib(command: StartAttempt, devices: tuple[Device, ...], processes_seen: int) -> int | None:
    """Returns the limit for torch in MiB, of a client of MPS as well: nothing tells whether its daemon's
    limit is in force."""
    if all(device.kind != "cuda" for device in devices):
        return None
    return process_limit_mib(command, processes_seen)


# --- Clients of MPS --------------------------------------------------------------------------------


CUDA_PROCESSES: Final = "COTENANT_CUDA_PROCESSES"
"""Said by the user (`--env`): how many processes of one worker open the GPU, where it is not one (data
loaders that decode on it, say). A memory limit holds for each client, so the worker's part is divided by
it."""
CUDA_PROCESSES_MAX: Final = 64
MPS_LIMIT_MIB_MIN: Final = 1024
"""A client with less is believed not to start: torch did not at 700 MiB on a T4 and 790 MiB on an A30
(k8s-device-plugin #1118), with error 46. Not measured by us."""
ONE_DEVICE_EACH: Final = (
    "MPS: one daemon per device here (mps.mode = per-device): every worker is LOCAL_RANK 0 and sees one GPU "
    "(who does something once per host goes by RANK % LOCAL_WORLD_SIZE), NCCL's direct transports are off"
)


class Clients(msgspec.Struct, frozen=True, kw_only=True):
    mps: tuple[MpsClient, ...] = ()
    """For `Order.mps`."""
    one_device_each: bool = False
    """Each worker sees its own device and no other."""
    why_not: str = ""
    """Why an attempt on devices with a daemon is not its client; empty if it is one, or if there is none."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What its user should know of it from the start."""
        if self.why_not:
            return (f"time-slicing, not MPS: {self.why_not}",)
        return (ONE_DEVICE_EACH,) if self.one_device_each else ()


def clients_of(
    command: StartAttempt,
    config: AgentConfig,
    devices: tuple[Device, ...],
    processes_seen: int = 1,
) -> Clients:
    """How the attempt's processes on these devices of this host use MPS."""
    shared = [device for device in devices if device.sharing == "mps"]
    if not shared or not config.mps_runtime:
        return Clients()
    limit_mib = process_limit_mib(command, processes_seen)
    why = _obstacle(command, config, devices, len(shared))
    if not why and limit_mib is not None and limit_mib < MPS_LIMIT_MIB_MIN:
        why = (
            f"each process may take {limit_mib} MiB of device memory, and CUDA is believed not to start "
            f"as a client with less than {MPS_LIMIT_MIB_MIN} MiB"
        )
    if why:
        return Clients(why_not=why)
    try:
        whole = config.mps_host_devices
        of_user = host_daemon(command.launch.uid, one_uid=config.uid != 0)
        served = [of_user] if whole else [device.local for device in devices]
        runtime = PurePosixPath(config.mps_runtime)
        pipes = [str(pipe_directory(runtime, each)) for each in served]
        for device in devices:  # Checked here, while the sender can still be answered.
            MemoryLimit(device_uuid=device.local, limit_mib=1)
    except ValueError as error:
        return Clients(why_not=str(error))
    mps = tuple(
        _client(command, config, processes_seen, pipe, "" if whole else device.local)
        for pipe, device in zip(pipes, devices, strict=False)
    )
    return Clients(mps=mps, one_device_each=len(mps) > 1)


def _obstacle(command: StartAttempt, config: AgentConfig, devices: tuple[Device, ...], shared: int) -> str:
    """Why it cannot be a client, for a person."""
    launch = command.launch
    if shared < len(devices):
        without = next(device.device_id for device in devices if device.sharing != "mps")
        return f"{without} has no MPS daemon, and a job uses MPS on all its devices of a host or on none"
    if launch.numbers_devices(config.settings.devices_as):
        return "its devices are given by index (--devices-as), and an MPS daemon numbers them anew"
    if launch.mode == "worker":
        return ""
    if len(devices) > 1 and not config.mps_host_devices:
        return (
            f"its one process here has {len(devices)} devices, and each has an MPS daemon of its own "
            "(mps.mode = per-device): let cotenant start one worker per device (--launch worker with the "
            "plain script)"
        )
    return ""


def _client(
    command: StartAttempt, config: AgentConfig, processes_seen: int, pipe: str, uuid: str
) -> MpsClient:
    percentage = config.mps_percentage
    if command.fraction < 1.0:
        percentage = min(percentage, max(1.0, round(100.0 * command.fraction)))
    return MpsClient(
        pipe_directory=pipe,
        device_uuid=uuid,
        memory_limit_mib=process_limit_mib(command, processes_seen),
        active_thread_percentage=percentage if percentage < 100 else None,
    )


def process_limit_mib(command: StartAttempt, processes_seen: int) -> int | None:
    """Returns the memory limit of one process in MiB: what was planned for a worker, divided by the processes
    with which the worker opens the GPU, as the user said or as was seen before."""
    if command.memory_cap_mib is None:
        return None
    processes = max(cuda_processes(command.launch.env), min(processes_seen, CUDA_PROCESSES_MAX))
    return max(1, command.memory_cap_mib // processes)


def cuda_processes(env: dict[str, str]) -> int:
    """What the user said, if it is a sensible number; else one."""
    text = env.get(CUDA_PROCESSES, "")
    return min(int(text), CUDA_PROCESSES_MAX) if text.isdecimal() and int(text) > 0 else 1
