"""The environment of each process of an attempt.

Rule: a job sees what its submission recorded, its secrets, and what this file adds; nothing of the
agent's own environment. A command that is started once, as it was typed, gets no word from which a script
could take it for a rank of a distributed run. What tells a worker its place (RANK, MASTER_ADDR, COTENANT_JOB,
the devices) is ours and wins; what only helps (OMP_NUM_THREADS, HOME, the network interface, NCCL's settings,
where the controller is) yields to the user's own. MPS variables come from the placement alone: a stale pipe
directory in the submitter's shell would attach a job to a foreign daemon, or silently to none. A job that
holds GPUs and is no client is kept out of /tmp/nvidia-mps; a job without GPUs gets no such variable.
"""

from __future__ import annotations

from importlib import import_module
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from cotenant.agent.ipc.records import MODULES, MpsClient, Order, RankOrder
from cotenant.agent.supervisor.processes import launchers, nccl
from cotenant.checkpoint.talk import protocol
from cotenant.mps import environment

STARTUP: Final = "cotenant/gradaccum/startup"
"""In the job-side folder: what every Python interpreter of a job runs first."""
STACKS_SIGNAL: Final = 47
"""SIGRTMIN + 13 on Linux: nobody else uses it. We send it only to a process that handles it (see
`ranks.py`)."""


SLURM: Final = "cotenant.agent.slurm.environment"
"""Loaded by this name for a script with `#SBATCH` lines, and for nothing else."""
PATH: Final = "/usr/local/bin:/usr/bin:/bin"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the processes run as, as the host's user database has it."""

    name: str = ""
    home: str = ""
    shell: str = ""


def meeting_of(order: Order) -> launchers.Meeting:
    own = order.gang.index(next(m for m in order.gang if m.host_id == order.host_id))
    return launchers.Meeting(
        hosts=len(order.gang),
        host_no=own,
        workers=order.world_size,
        workers_here=len(order.gang[own].devices),
        address=order.start.master_address,
        port=order.start.master_port,
    )


def command_of(order: Order) -> tuple[str, ...]:
    """Returns the command to execute.

    Raises:
        NotLaunchable: the launcher cannot be given its place.
    """
    argv = order.launch.argv
    return launchers.host_command(argv, meeting_of(order)) if order.launch.mode == "host" else argv


def environment_of(
    order: Order,
    rank: RankOrder,
    socket: Path,
    account: Account,
    cuda_indices: tuple[int, ...] = (),
) -> dict[str, str]:
    """Everything that a process gets. `cuda_indices`: its devices, where it cannot read UUIDs."""
    helpful = _account_words(account) | _threads(order, rank) | _network(order) | nccl.nccl_environment(order)
    helpful |= {protocol.ENV_ENDPOINT: order.controller} if order.controller else {}
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",  # Else `logs -f` lags behind by 8 KiB.
        "PYTHONFAULTHANDLER": "1",  # A crash says where.
        **helpful,
        **environment.drop_mps_variables(order.launch.env),
        **environment.drop_mps_variables(order.secrets),
        **_python_path(order),
        **_devices(rank, cuda_indices),
        **_mps(order, rank),
        **_place(order, rank),
        **_protocol_words(order, socket),
        **_slurm(order, rank),
        **rank.env,
    }


def _slurm(order: Order, rank: RankOrder) -> dict[str, str]:
    """Slurm's variables and programs, for a script with `#SBATCH` lines alone."""
    if not order.launch.slurm:
        return {}
    words: dict[str, str] = import_module(SLURM).slurm_environment(
        order, rank, order.launch.env.get("PATH", PATH)
    )
    return words


def _account_words(account: Account) -> dict[str, str]:
    words = {"USER": account.name, "LOGNAME": account.name, "HOME": account.home, "SHELL": account.shell}
    return {name: value for name, value in words.items() if value}


def _threads(order: Order, rank: RankOrder) -> dict[str, str]:
    """Returns a setting for as many threads as the worker has cores: more only get in each other's way."""
    mode = order.launch.mode
    workers = 1 if mode == "process" else meeting_of(order).workers_here
    cores = len(rank.cores) // (workers if mode == "host" else 1) or order.start.cpus // workers
    return {"OMP_NUM_THREADS": str(cores)} if cores > 0 else {}


def _network(order: Order) -> dict[str, str]:
    if not order.network:
        return {}
    return {"GLOO_SOCKET_IFNAME": order.network, "NCCL_SOCKET_IFNAME": order.network}


def _python_path(order: Order) -> dict[str, str]:
    own = order.launch.env.get("PYTHONPATH", "")
    ours = (f"{order.jobside_path}/{STARTUP}", order.jobside_path) if order.jobside_path else ()
    parts = [part for part in (*ours, own) if part]
    return {"PYTHONPATH": ":".join(parts)} if parts else {}


def _devices(rank: RankOrder, cuda_indices: tuple[int, ...]) -> dict[str, str]:
    """The devices it was given and no other; a job without any sees none."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if cuda_indices else {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, cuda_indices or rank.cuda_uuids)), **order}


def client_of(order: Order, rank: RankOrder) -> MpsClient | None:
    """How a process of the order is an MPS client; None if it is none."""
    if len(order.mps) < 2:
        return order.mps[0] if order.mps else None
    return order.mps[order.ranks.index(rank)]


def _mps(order: Order, rank: RankOrder) -> dict[str, str]:
    client = client_of(order, rank)
    if client is None:
        return environment.NOT_A_CLIENT if rank.cuda_uuids else {}
    uuids = (client.device_uuid,) if client.device_uuid else rank.cuda_uuids
    limit_mib = client.memory_limit_mib
    numbered = zip_longest(uuids, client.device_numbers[: len(uuids)])
    memory = tuple(
        environment.MemoryLimit(device_uuid=uuid, limit_mib=limit_mib, daemon_number=number)
        for uuid, number in numbered
        if limit_mib is not None
    )
    return environment.client_environment(
        PurePosixPath(client.pipe_directory), memory, client.active_thread_percentage
    )


def _place(order: Order, rank: RankOrder) -> dict[str, str]:
    meeting = meeting_of(order)
    launch = order.launch
    if launch.mode != "host" and not launch.gives_ranks(order.world_size):
        return {}
    common = {
        "MASTER_ADDR": order.start.master_address,
        "MASTER_PORT": str(order.start.master_port),
        "GROUP_RANK": str(meeting.host_no),
    }
    if launch.mode == "host":  # The launcher numbers its workers itself.
        return common | launchers.meeting_environment(meeting)
    return common | {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_WORLD_SIZE": str(meeting.workers_here),
    }


def _protocol_words(order: Order, socket: Path) -> dict[str, str]:
    words = {
        protocol.ENV_PROTOCOL: str(protocol.PROTOCOL_VERSION),
        protocol.ENV_JOB: order.job_id,
        protocol.ENV_ATTEMPT: str(order.attempt),
        protocol.ENV_CHECKPOINT_ROOT: order.checkpoint_root,
        protocol.ENV_ACCUMULATION_STEPS: str(order.start.accumulation_steps),
        protocol.ENV_SOCKET: str(socket),
    }
    if order.watch is not None:
        words[protocol.ENV_STACKS_SIGNAL] = str(STACKS_SIGNAL)
    if order.collective_scale > 1.0:
        words[protocol.ENV_COLLECTIVE_SCALE] = str(order.collective_scale)
    if order.warm.learns:
        words[protocol.ENV_MODULES] = str(socket.parent / MODULES)
    if order.start.sub_batch is not None:
        words[protocol.ENV_SUB_BATCH] = str(order.start.sub_batch)
    if order.start.step_batch:
        words[protocol.ENV_STEP_BATCH] = "x".join(map(str, order.start.step_batch))
    if order.launch.zero_code:
        words[protocol.ENV_ZERO_CODE] = ",".join(order.launch.zero_code)
    if {"checkpoint", "leave"} & set(order.launch.zero_code):  # Sets have the same order in each attempt.
        words["PYTHONHASHSEED"] = order.launch.env.get("PYTHONHASHSEED", "0")
    if order.torch_limit_mib is not None:
        words[protocol.ENV_MEMORY_MIB] = str(order.torch_limit_mib)
    return words
