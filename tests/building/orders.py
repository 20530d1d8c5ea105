"""Orders for supervisors: a plain one, and others that differ from it."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.agent.ipc import Order
from cotenant.controller.domain import (
    AttemptNo,
    CommandId,
    DeviceId,
    GangMember,
    HostId,
    JobId,
    Launch,
    StartAttempt,
)

HOST = HostId("h")
PLAIN = Order(
    start=StartAttempt(
        command_id=CommandId(1),
        host_id=HOST,
        job_id=JobId("7"),
        attempt=AttemptNo(1),
        launch=Launch(argv=("python", "train.py")),
        gang=(GangMember(host_id=HOST, devices=(DeviceId("h/0"),), first_rank=0),),
        master_address="127.0.0.1",
        master_port=29500,
        sub_batch=None,
        accumulation_steps=1,
        memory_cap_mib=None,
        host_memory_mib=0,
        cpus=0,
        resume_step=0,
        checkpoint_every_s=0.0,
    ),
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
