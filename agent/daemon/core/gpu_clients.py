"""Which of an attempt's processes are clients of an MPS daemon, and within which limits. Pure.

Rule: every job on a device with a daemon is its client from the start, alone or not: what a client may take
is read when its CUDA context is made and fixed from then on, and a newcomer may come at any time. An attempt
is wholly a client or not at all; where it cannot be one, it says why and time-slices.

A process talks to one daemon. One for all devices of the host, of the job's user, is the default: every
worker sees all devices of its gang here and has its true LOCAL_RANK. With one daemon per device each worker
sees its own device alone and is LOCAL_RANK 0, as under `torchrun --virtual-local-rank`, which is said at its
start; a launcher that starts several workers itself gives all of them one environment, so they cannot be
clients of several daemons.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

import msgspec
from msgspec import UNSET

from cotenant.agent.daemon.core.edge import AgentConfig
from cotenant.agent.ipc import MpsClient
from cotenant.agent.supervisor.processes import launcher_of
from cotenant.controller.domain import Device, StartAttempt
from cotenant.mps.environment import (
    PRIORITY_BELOW_NORMAL,
    PRIORITY_NORMAL,
    MemoryLimit,
    host_daemon,
    pipe_directory,
)

CUDA_PROCESSES: Final = "COTENANT_CUDA_PROCESSES"
"""Said by the user (`--env`): how many processes of one worker open the GPU, where it is not one (data
loaders that decode on it, say). A memory limit holds for each client, so the worker's part is divided by
it."""
CUDA_PROCESSES_MAX: Final = 64
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
    why = _obstacle(command, config, devices, len(shared))
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
    if whole:
        numbers = tuple(whole.index(device.local) for device in devices)
        mps = tuple(msgspec.structs.replace(each, device_numbers=numbers) for each in mps)
    return Clients(mps=mps, one_device_each=len(mps) > 1)


def _obstacle(command: StartAttempt, config: AgentConfig, devices: tuple[Device, ...], shared: int) -> str:
    """Why it cannot be a client, for a person."""
    launch = command.launch
    if shared < len(devices):
        without = next(device.device_id for device in devices if device.sharing != "mps")
        return f"{without} has no MPS daemon, and a job uses MPS on all its devices of a host or on none"
    if launch.mode != "host":
        return ""
    if launcher_of(launch.argv) == "deepspeed":
        return "deepspeed numbers its devices itself, which goes wrong where an MPS daemon numbers them anew"
    if len(devices) > 1 and not config.mps_host_devices:
        return (
            f"its command starts {len(devices)} workers here itself, and each device has an MPS daemon of "
            "its own (mps.mode = per-device): let cotenant start the workers (--launch worker with the plain "
            "script)"
        )
    return ""


def _client(
    command: StartAttempt, config: AgentConfig, processes_seen: int, pipe: str, uuid: str
) -> MpsClient:
    percentage = config.mps_percentage
    if command.fraction is not UNSET:
        percentage = min(percentage, max(1.0, round(100.0 * command.fraction)))
    return MpsClient(
        pipe_directory=pipe,
        device_uuid=uuid,
        memory_limit_mib=process_limit_mib(command, processes_seen),
        active_thread_percentage=percentage if percentage < 100 else None,
        priority=PRIORITY_BELOW_NORMAL if command.job_class == "spot" else PRIORITY_NORMAL,
    )


def process_limit_mib(command: StartAttempt, processes_seen: int) -> int | None:
    """Of one process: what was planned for a worker, divided by the processes with which it opens the GPU, as
    the user said or as was seen before."""
    if command.memory_cap_mib is None:
        return None
    processes = max(cuda_processes(command.launch.env), min(processes_seen, CUDA_PROCESSES_MAX))
    return max(1, command.memory_cap_mib // processes)


def cuda_processes(env: dict[str, str]) -> int:
    """What the user said, if it is a sensible number; else one."""
    text = env.get(CUDA_PROCESSES, "")
    return min(int(text), CUDA_PROCESSES_MAX) if text.isdecimal() and int(text) > 0 else 1
