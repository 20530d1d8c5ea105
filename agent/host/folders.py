"""The agent's state folder, where it keeps what it knows.

Rule: one agent at a time, and only its own user writes there. Everything is opened by its path, so no other
user may be able to replace a part of it.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from cotenant.agent.host.user_files import find_exposed
from cotenant.agent.ipc.files import put_aside
from cotenant.controller.system.files import write_whole
from cotenant.controller.system.locks import Lock, LockTaken
from cotenant.controller.wire import BadMessage, decode_text

STATE_LOCK: Final = "agent.lock"
TOKEN: Final = "token"
_TOKEN_BYTES_MAX: Final = 256


class StateProblem(Exception):
    """The folder cannot be used; one line with what to do."""


def take_state_folder(folder: Path) -> None:
    """Make and lock it for the life of this process.

    Others may pass through (jobs of other users reach their own sockets), but not look around.

    Raises:
        StateProblem: another agent has it, or somebody else could change what is in it.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    if (where := find_exposed(folder)) is not None:
        raise StateProblem(
            f"others than root can change {where}: root's agent needs a --state-dir that only root can change"
        )
    try:
        Lock(folder / STATE_LOCK)
    except LockTaken as taken:
        raise StateProblem(
            f"another agent (pid {taken.pid or '?'}) works in {folder}: stop it, or use another --state-dir"
        ) from None


def token_in(folder: Path) -> str:
    """The folder's random name: by it an agent knows the devices that its own earlier jobs still hold. A
    damaged one is put aside, and these jobs count as another agent's until they have ended."""
    path = folder / TOKEN
    try:
        token = decode_text(path.read_bytes(), bytes_max=_TOKEN_BYTES_MAX).strip()
        if token.isalnum():
            return token
        put_aside(path)
    except BadMessage:
        put_aside(path)
    except FileNotFoundError:
        pass
    token = uuid.uuid4().hex
    write_whole(path, f"{token}\n".encode())
    return token
