"""One owner per pipe directory, and what it must not forget.

Rule: only the holder of `<pipe directory>.owner` starts, configures or ends the daemon there. The kernel
drops the lock with its holder; the record in the file stays, so that the next owner of the same name knows
its own daemon again.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from cotenant.mps.process import MpsProcessIdentity

RECORD_VERSION = 1
SUFFIX = ".owner"
_BYTES_MAX = 65_536


class Owned(Exception):
    """Somebody else owns this daemon, or its file cannot be used. One line, for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipRecord:
    owner: str = ""
    """The owner's name, the same over its restarts."""
    holder: str = ""
    """Who that is, for a person: pid and user."""
    daemon: MpsProcessIdentity | None = None
    socket: tuple[int, int] | None = None
    """Device and inode of the control socket that the daemon made."""


class Ownership:
    """A claim on one pipe directory, for as long as it is not released."""

    def __init__(self, pipe_directory: PurePosixPath, owner: str) -> None:
        """Raises Owned."""
        self._owner = owner
        self._path = pipe_directory.parent / f"{pipe_directory.name}{SUFFIX}"
        try:
            os.makedirs(self._path.parent, mode=0o755 if os.geteuid() == 0 else 0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise Owned(f"{self._path} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._read().holder
            os.close(self._file)
            raise Owned(
                f"the MPS daemon of {pipe_directory} belongs to {holder or 'another agent'}"
            ) from None
        self.record = self._read()

    def keep(self, **changes: Any) -> None:
        """Write the record with these changes, durably, before anything that follows from it is done."""
        now = {name: getattr(self.record, name) for name in ("daemon", "socket")}
        self.record = OwnershipRecord(
            owner=self._owner, holder=f"pid {os.getpid()} of uid {os.getuid()}", **{**now, **changes}
        )
        data = json.dumps({"version": RECORD_VERSION, **asdict(self.record)}).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))
        os.fsync(self._file)

    def release(self) -> None:
        os.close(self._file)

    def _read(self) -> OwnershipRecord:
        """Empty where there is none, it is torn, of a newer version, or another owner's."""
        try:
            told = json.loads(os.pread(self._file, _BYTES_MAX, 0))
            if told["version"] > RECORD_VERSION:
                return OwnershipRecord()
            daemon = told["daemon"]
            socket = told["socket"]
            return OwnershipRecord(
                owner=str(told["owner"]),
                holder=str(told["holder"]),
                daemon=None if daemon is None else MpsProcessIdentity(**daemon),
                socket=None if socket is None else (int(socket[0]), int(socket[1])),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return OwnershipRecord()
