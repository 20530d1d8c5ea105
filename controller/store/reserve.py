"""Room on the disk that the journal keeps for itself.

Rule: room on the disk is the journal's own, so that what runs can be journalled after others have filled the
disk. It lies inside the journal's own files, where nobody else can take it: free pages in the database, and a
write-ahead log that is long already. It is made while the disk has room, before new work is accepted. File
systems that never write in place (btrfs, zfs) cannot keep such a promise.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

RESERVE_BYTES: Final = 8 * 1024 * 1024
"""Room for some thousands of entries. The log keeps part of it as well, for these entries on their way."""
PORTION_BYTES: Final = 4 * 1024 * 1024
"""How much is set aside at a time, beyond the reserve: so it happens seldom."""
DISK_BYTES_MIN: Final = 4 * RESERVE_BYTES
"""With less free space than this nothing is set aside: the reserve itself would fill the disk."""

_KEY: Final = "reserve"


class Reserve:
    """The disk space that one journal sets aside for bad times; used by its writer alone."""

    def __init__(self, path: Path, database: sqlite3.Connection, disk_bytes_min: int) -> None:
        self._disk_bytes_min = disk_bytes_min
        self._folder = path.parent
        self._database = database
        self._page_bytes: int = database.execute("PRAGMA page_size").fetchone()[0]

    def begin(self) -> None:
        """Sets space aside at a start, when the log is short."""
        if self._disk_has_room():
            self._set_aside(RESERVE_BYTES + PORTION_BYTES)

    def refill(self) -> None:
        """Replaces, after a commit, the space that it took, while the disk has room."""
        missing = RESERVE_BYTES - self.free_bytes()
        if missing > 0 and self._disk_has_room():
            self._set_aside(RESERVE_BYTES + PORTION_BYTES)

    def free_bytes(self) -> int:
        """The free space inside the database, in bytes."""
        pages: int = self._database.execute("PRAGMA freelist_count").fetchone()[0]
        return pages * self._page_bytes

    def _disk_has_room(self) -> bool:
        space = os.statvfs(self._folder)
        return space.f_bavail * space.f_frsize >= self._disk_bytes_min

    def _set_aside(self, size: int) -> None:
        """Pages that were written and are free again stay in the file, and a log never gets shorter while it
        is open."""
        execute = self._database.execute
        execute("INSERT OR REPLACE INTO meta VALUES(?, zeroblob(?))", (_KEY, size))
        execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        execute("DELETE FROM meta WHERE key = ?", (_KEY,))
        execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
