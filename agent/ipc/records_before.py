"""Records of the version before, in today's form: supervisors outlive the agents that started them.

Rule: everything that is different in the version before is said here, and goes when it is no longer read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.agent.ipc.records import RECORD_VERSION, Order, Result, Status
from cotenant.controller.domain.commands import StartAttempt
from cotenant.controller.wire.codec import decode_json

INNER: Final[dict[type, tuple[str, type[msgspec.Struct], dict[str, object]]]] = {
    Order: ("start", StartAttempt, {"command": "StartAttempt", "command_id": 0, "resume_attempt": None}),
    Result: ("status", Status, {}),
}
"""What is a record of its own today: its name, its kind, and what was not kept of it."""


def renewed(data: bytes, kind: type) -> bytes:
    """The JSON of a record, which was written by version 1.

    Raises:
        BadMessage: it is no JSON object.
    """
    if kind not in INNER:
        return data
    name, inner, unknown = INNER[kind]
    said: dict[str, msgspec.Raw] = decode_json(data, dict[str, msgspec.Raw])
    del said["version"]
    held = {field: said.pop(field) for field in inner.__struct_fields__ if field in said}
    return msgspec.json.encode({**said, "version": RECORD_VERSION, name: {**unknown, **held}})
