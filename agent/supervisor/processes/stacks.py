"""Having processes write the stacks of their threads into their logs.

Rule: the stacks signal goes only to a process that has taken it (the kernel knows: `SigCgt`), since to any
other it is death. What took it writes in C, in the middle of whatever it does, and goes on. SIGABRT, for
those that cannot, is likewise only sent to a process that handles it, as Python does under
PYTHONFAULTHANDLER: it writes its stacks and dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.host.identity import identity_of, open_pidfd
from cotenant.agent.supervisor.processes.environment import STACKS_SIGNAL

PROCESSES_MAX: Final = 64
"""A rank with hundreds of data loaders must not fill its log with them."""


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; False if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    mask = next((line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def dump(pids: Iterable[int]) -> list[int]:
    """Ask each for its stacks, once: two at a time in one process are not safe. Returns those asked."""
    return [pid for pid in [*dict.fromkeys(pids)][:PROCESSES_MAX] if _send_if_caught(pid, STACKS_SIGNAL)]


def abort_others(pids: Iterable[int]) -> list[int]:
    """Abort those that could not be asked and write their stacks when they are aborted; returns them."""
    others = [pid for pid in list(pids)[:PROCESSES_MAX] if not catches(pid, STACKS_SIGNAL)]
    return [pid for pid in others if _send_if_caught(pid, signal.SIGABRT)]


def _send_if_caught(pid: int, number: int) -> bool:
    identity = identity_of(pid)
    descriptor = open_pidfd(identity) if identity is not None else None
    if descriptor is None:
        return False
    try:
        if not catches(pid, number):
            return False
        with suppress(OSError):
            signal.pidfd_send_signal(descriptor, number)
            return True
        return False
    finally:
        os.close(descriptor)
