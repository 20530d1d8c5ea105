"""What this package needs of the job-side protocol: its names and one datagram.

Rule: the constants of `controller/wire/job.py` are repeated here, because cotenant itself may not be
installed where this runs; a test compares them.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Final

PROTOCOL_VERSION: Final = 1
ENV_ACCUMULATION_STEPS: Final = "COTENANT_ACCUMULATION_STEPS"
ENV_ACCUMULATION_SCHEDULE: Final = "COTENANT_ACCUMULATION_SCHEDULE"
ENV_STEP_BATCH: Final = "COTENANT_STEP_BATCH"
ENV_SOCKET: Final = "COTENANT_SOCKET"
ENV_ZERO_CODE: Final = "COTENANT_ZERO_CODE"
DATAGRAM_BYTES_MAX: Final = 4096
FAILED: Final = "failed"

_ERROR_CHARACTERS: Final = 500


def tell_failed(error: str) -> None:
    """Let the supervisor know why accumulation was refused; the exception tells the user."""
    path = os.environ.get(ENV_SOCKET)
    if not path:
        return
    rank = os.environ.get("RANK", "0")
    message = {
        "v": PROTOCOL_VERSION,
        "m": FAILED,
        "rank": int(rank) if rank.isdecimal() else 0,
        "what": "accumulate",
        "error": error[:_ERROR_CHARACTERS],
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        try:
            out.sendto(json.dumps(message).encode(), path)
        except OSError:
            return  # nobody listens: the exception is enough
