"""What agents and supervisors are told to do: plain commands and orders, and others that differ from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cotenant.agent.ipc.records import Order, RankOrder
from cotenant.controller.domain import (
    AttemptNo,
    CommandId,
    DeviceId,
    GangMember,
    HostId,
    InputFile,
    JobId,
    Launch,
    StartAttempt,
    StopAttempt,
    because,
)

HOST = HostId("h")


def gang(*members: Sequence[str]) -> tuple[GangMember, ...]:
    """One member for each host, by the ids of its devices; a rank on each."""
    made: list[GangMember] = []
    first_rank = 0
    for devices in members:
        host_id = HostId(devices[0].partition("/")[0])
        made.append(GangMember(host_id=host_id, devices=tuple(map(DeviceId, devices)), first_rank=first_rank))
        first_rank += len(devices)
    return tuple(made)


def start(
    job: str = "7", attempt: int = 1, command: int = 1, *, host: str = HOST, **more: Any
) -> StartAttempt:
    plain: dict[str, Any] = {
        "launch": Launch(argv=("python", "train.py")),
        "gang": gang((f"{host}/0",)),
        "master_address": "127.0.0.1",
        "master_port": 29500,
        "sub_batch": None,
        "accumulation_steps": 1,
        "memory_cap_mib": None,
        "host_memory_mib": 0,
        "cpus": 0,
        "resume_step": 0,
        "checkpoint_every_s": 0.0,
    }
    return StartAttempt(**{**named(job, attempt, command, host), **plain, **more})


def stop(job: str = "7", attempt: int = 1, command: int = 2, *, host: str = HOST, **more: Any) -> StopAttempt:
    plain: dict[str, Any] = {"save": True, "deadline_s": 60.0, "reason": because("cancelled-by", "ann")}
    return StopAttempt(**{**named(job, attempt, command, host), **plain, **more})


def named(job: str, attempt: int, command: int, host: str) -> dict[str, Any]:
    return {
        "command_id": CommandId(command),
        "host_id": HostId(host),
        "job_id": JobId(job),
        "attempt": AttemptNo(attempt),
    }


PLAIN = Order(
    start=start(),
    world_size=1,
    ranks=(),
    checkpoint_root="/checkpoints/7",
    lease_s=None,
    start_deadline_s=1000.0,
    log_bytes_max=1000,
    jobside_path="/jobside",
)


def changed(order: Order, **fields: Any) -> Order:
    """With other values, of its own fields or of the command that it holds."""
    start = {name: fields.pop(name) for name in StartAttempt.__struct_fields__ if name in fields}
    return msgspec.structs.replace(order, start=msgspec.structs.replace(order.start, **start), **fields)


def order_of(each: int = 1, /, *, hosts: int = 1, host_no: int = 0, **fields: Any) -> Order:
    """For one of the hosts of a gang (`h`, or `h0`, `h1`, ...), with so many ranks on each."""
    names = [HOST] if hosts == 1 else [f"h{number}" for number in range(hosts)]
    first = host_no * each
    plain: dict[str, Any] = {
        "host_id": HostId(names[host_no]),
        "gang": gang(*([f"{name}/{number}" for number in range(each)] for name in names)),
        "world_size": hosts * each,
        "ranks": tuple(RankOrder(rank=first + number, local_rank=number) for number in range(each)),
    }
    return changed(PLAIN, **{**plain, **fields})


def input_file(path: Path) -> InputFile:
    """What `run` says of its standard input, of a file."""
    found = path.stat()
    return InputFile(path=str(path), device=found.st_dev, inode=found.st_ino)
