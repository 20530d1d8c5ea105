"""One controller per journal and per socket: an advisory lock that ends with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class LockTaken(Exception):
    """Somebody else holds it."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is held by pid {pid or '?'}")
        self.pid = pid


class Lock:
    """Held from construction to `release`, or to the end of the process, however it ends."""

    def __init__(self, path: Path) -> None:
        """Raises LockTaken, with the holder's pid."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(self._descriptor, 32).strip()
            os.close(self._descriptor)
            raise LockTaken(path, int(text) if text.isdigit() else 0) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
