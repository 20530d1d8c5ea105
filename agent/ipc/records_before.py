"""Records of the version before, in today's form: supervisors outlive the agents that started them.

Rule: everything that is different in the version before is said here, and goes when it is no longer read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.agent.ipc.records import RECORD_VERSION, Order
from cotenant.controller.domain.commands import StartAttempt
from cotenant.controller.wire.codec import decode_json

UNKNOWN: Final = {"command": "StartAttempt", "command_id": 0, "resume_attempt": None}
"""What an order did not keep of its command."""


def renewed(data: bytes, kind: type) -> bytes:
    """The JSON of a record, which was written by version 1.

    Raises:
        BadMessage: it is no JSON object.
    """
    if kind is not Order:
        return data
    said: dict[str, msgspec.Raw] = decode_json(data, dict[str, msgspec.Raw])
    start = {name: said.pop(name) for name in StartAttempt.__struct_fields__ if name in said}
    return msgspec.json.encode({**said, "version": RECORD_VERSION, "start": {**UNKNOWN, **start}})
