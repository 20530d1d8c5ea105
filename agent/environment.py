"""The environment and command line of each process of an attempt.

Rule: a job sees what its submission recorded, its secrets, and what this file adds; nothing of the
agent's own environment. What tells a worker its place (RANK, MASTER_ADDR, COTENANT_JOB, the devices) is
ours and wins; what only helps (OMP_NUM_THREADS, HOME, the network interface) yields to the user's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.launchers import Meeting, host_command, launcher_of, meeting_environment
from cotenant.agent.records import Order, RankOrder
from cotenant.controller.wire import job as protocol

STARTUP: Final = "cotenant/gradaccum/startup"
"""In the job-side folder: what every interpreter of a job runs first that asked for the zero-code hook."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the processes run as, as the host's user database has it."""

    name: str = ""
    home: str = ""
    shell: str = ""


def meeting_of(order: Order) -> Meeting:
    own = order.gang.index(next(m for m in order.gang if m.host_id == order.host_id))
    return Meeting(
        hosts=len(order.gang),
        host_no=own,
        workers=order.world_size,
        workers_here=len(order.gang[own].devices),
        address=order.master_address,
        port=order.master_port,
    )


def command_of(order: Order) -> tuple[str, ...]:
    """What to execute.

    Raises:
        NotLaunchable: the launcher cannot be given its place.
    """
    argv = order.launch.argv
    return host_command(argv, meeting_of(order)) if order.launch.mode == "host" else argv


def environment_of(
    order: Order,
    rank: RankOrder,
    socket: Path,
    account: Account,
    cuda_indices: tuple[int, ...] = (),
) -> dict[str, str]:
    """Everything that a process gets. `cuda_indices` only for launchers that cannot read device UUIDs."""
    helpful = _account_words(account) | _threads(order, rank) | _network(order)
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",  # Else `logs -f` lags behind by 8 KiB.
        **helpful,
        **order.launch.env,
        **order.secrets,
        **_python_path(order),
        **_devices(rank, cuda_indices),
        **_place(order, rank),
        **_protocol_words(order, socket),
        **rank.env,
    }


def needs_cuda_indices(order: Order) -> bool:
    """deepspeed reads CUDA_VISIBLE_DEVICES as a list of numbers."""
    return order.launch.mode == "host" and launcher_of(order.launch.argv) == "deepspeed"


def _account_words(account: Account) -> dict[str, str]:
    words = {"USER": account.name, "LOGNAME": account.name, "HOME": account.home, "SHELL": account.shell}
    return {name: value for name, value in words.items() if value}


def _threads(order: Order, rank: RankOrder) -> dict[str, str]:
    """As many threads as the worker has cores: more only get in each other's way."""
    workers = meeting_of(order).workers_here
    if order.launch.mode == "host":
        cores = len(rank.cores) // workers
    else:
        cores = len(rank.cores)
    cores = cores or order.cpus // workers
    return {"OMP_NUM_THREADS": str(cores)} if cores > 0 else {}


def _network(order: Order) -> dict[str, str]:
    if not order.network:
        return {}
    return {"GLOO_SOCKET_IFNAME": order.network, "NCCL_SOCKET_IFNAME": order.network}


def _python_path(order: Order) -> dict[str, str]:
    own = order.launch.env.get("PYTHONPATH", "")
    hook = f"{order.jobside_path}/{STARTUP}" if order.launch.zero_code else ""
    parts = [part for part in (hook, order.jobside_path, own) if part]
    return {"PYTHONPATH": ":".join(parts)} if parts else {}


def _devices(rank: RankOrder, cuda_indices: tuple[int, ...]) -> dict[str, str]:
    """The devices it was given and no other; a job without any sees none."""
    if not cuda_indices:
        return {"CUDA_VISIBLE_DEVICES": ",".join(rank.cuda_uuids)}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(str(each) for each in cuda_indices),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def _place(order: Order, rank: RankOrder) -> dict[str, str]:
    meeting = meeting_of(order)
    common = {
        "MASTER_ADDR": order.master_address,
        "MASTER_PORT": str(order.master_port),
        "GROUP_RANK": str(meeting.host_no),
    }
    if order.launch.mode == "host":  # The launcher numbers its workers itself.
        return common | meeting_environment(meeting)
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
        protocol.ENV_ACCUMULATION_STEPS: str(order.accumulation_steps),
        protocol.ENV_SOCKET: str(socket),
    }
    if order.profile_s > 0:
        words[protocol.ENV_TRIALS] = "1"
    if order.sub_batch is not None:
        words[protocol.ENV_SUB_BATCH] = str(order.sub_batch)
    if order.launch.zero_code:
        words[protocol.ENV_ZERO_CODE] = ",".join(order.launch.zero_code)
    if order.memory_fraction is not None:
        words[protocol.ENV_MEMORY_FRACTION] = str(order.memory_fraction)
    return words
