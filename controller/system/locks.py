"""Advisory locks on files. They end with the last process that has the file open: a crash leaves nothing to
clean up.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

_FILE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class LockTaken(Exception):
    """Says that another process holds the lock."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is held by pid {pid or '?'}")
        self.pid = pid


class Lock:
    """Held from construction to `release`, or to the end of the process, however it ends."""

    def __init__(self, path: Path) -> None:
        """Raises LockTaken, with the holder's pid."""
        self._descriptor = os.open(path, _FILE | os.O_CREAT, 0o600)
        if not try_lock(self._descriptor):
            text = os.read(self._descriptor, 32).strip()
            os.close(self._descriptor)
            raise LockTaken(path, int(text) if text.isdigit() else 0)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)


def try_lock(file: int) -> bool:
    """Whether no other process holds it, in whichever way; then it is ours alone. Raises OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_share(file: int) -> bool:
    """Whether no process holds it alone; then we are one of its holders. Raises OSError."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_locked(path: Path) -> int:
    """The file, locked, for children to inherit. Raises OSError: another process holds it."""
    descriptor = os.open(path, _FILE | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_free(path: Path) -> bool:
    """Whether no process holds it; a file that is not there is not held."""
    try:
        descriptor = os.open(path, _FILE)
    except FileNotFoundError:
        return True
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)
