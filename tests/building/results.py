"""How attempts end: a plain result, and others that differ from it."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.agent.ipc.records import Result, Status
from cotenant.controller.domain import AttemptNo, ExitVerdict, JobId


def result(job: str = "7", attempt: int = 1, **fields: Any) -> Result:
    """`fields`: its own, or those of the status and the verdict that it holds."""
    status = fields.pop("status", None) or Status(job_id=JobId(job), attempt=AttemptNo(attempt), step=9)
    of_status = {name: fields.pop(name) for name in Status.__struct_fields__ if name in fields}
    fields = {"outcome": "finished", "exit_code": 0, **fields}
    verdict = take_verdict(fields)
    return Result(status=msgspec.structs.replace(status, **of_status), verdict=verdict, **fields)


def take_verdict(fields: dict[str, Any]) -> ExitVerdict:
    """The verdict that some of the fields are of, which leave the others. Its detail is for everybody, unless
    they say otherwise."""
    of_verdict = {name: fields.pop(name) for name in ExitVerdict.__struct_fields__ if name in fields}
    return ExitVerdict(**{"ours": of_verdict.get("detail", ""), **of_verdict})
