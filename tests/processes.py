"""Processes that a test starts and then looks at from outside.

Rule: `Popen` returns when the new program has been accepted, and for a moment after that the kernel shows
neither its command nor its environment. Whoever is to be recognised by them is waited for first.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from tests.building.limits import within_s

IMPORT_S: Final = within_s(420.0)
"""For a process that imports torch: a minute and a half was too short on a machine with ten processes for
each core, and what is of interest is only whether it ends."""


def own_program() -> str:
    """The first word of our own command line, as others see it."""
    return Path("/proc/self/cmdline").read_text().partition("\0")[0]


def await_shown(pid: int, *words: str) -> int:
    """Wait until the process shows this command (and so its environment); the pid."""
    wanted = b"".join(os.fsencode(word) + b"\0" for word in words)
    while Path(f"/proc/{pid}/cmdline").read_bytes() != wanted:
        time.sleep(0.001)
    return pid
