"""What a supervisor that was started ahead is handed when there is an attempt for it.

Rule: until it has an attempt, a supervisor that waits for one holds no lock, has written nothing, and ends
with its agent. The agent hands it what it would have been started with; the locks among it stay held while
the message is on its way.
"""

from __future__ import annotations

import os
import socket
from typing import Final

FOLDER_BYTES_MAX: Final = 4096
DESCRIPTORS_MAX: Final = 250
"""The kernel passes 253 in one message."""


def handed_over(number: int) -> list[str] | None:
    """The arguments of the supervisor, once the agent has an attempt for it at the other end of this socket;
    None: the agent is gone, or wants it no longer."""
    with socket.socket(fileno=number) as agent:
        folder, descriptors, flags, _ = socket.recv_fds(agent, FOLDER_BYTES_MAX, DESCRIPTORS_MAX)
    if not folder or len(descriptors) < 2 or flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        return None
    log, secrets, *_ = descriptors  # The others are locks, held for as long as we live.
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    return [os.fsdecode(folder), str(secrets)]
