"""How attempts end: a plain result, and others that differ from it."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.agent.ipc import Result, Status
from cotenant.controller.domain import AttemptNo, JobId


def result(job: str = "7", attempt: int = 1, **fields: Any) -> Result:
    """`fields`: its own, or those of the status that it holds."""
    status = Status(job_id=JobId(job), attempt=AttemptNo(attempt), step=9)
    said = {name: fields.pop(name) for name in Status.__struct_fields__ if name in fields}
    status = msgspec.structs.replace(status, **said)
    return Result(status=status, **{"outcome": "finished", "exit_code": 0, "detail": "", **fields})
