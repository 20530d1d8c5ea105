"""How old entries go from a journal into files beside it, while a controller may be writing to the journal.

Rule: an entry leaves the journal only after a file was found to hold the same entry, byte for byte. The
lowest number leaves first, so no entry is missing between files and journal. A crash at any point leaves at
most an unfinished file, or entries in both places; the next run goes on from there. Entries that a start
needs never leave: those behind the oldest snapshot stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby, takewhile
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cotenant.controller.store import archive
from cotenant.controller.store.database import Database, JournalError, StorageError, file_error
from cotenant.controller.store.journal import JournalReader
from cotenant.controller.store.schema import PUT_META
from cotenant.controller.system.locks import Lock, LockTaken

PERIOD_S: Final = 30 * 86_400.0
"""Entries of as much time are in one file."""
LOCK_NAME: Final = "archive.lock"
PORTION: Final = 5_000
"""Entries that are deleted in one transaction."""


class Archivable(Protocol):
    """A journal whose old entries can be taken out."""

    name: str

    def first_seq(self) -> int:
        """The number of its first entry; 0: it has none."""

    def last_to_leave(self) -> int:
        """The last entry that no start needs; 0: there is none."""

    def kept_entries(self, after: int) -> Iterator[archive.ArchivedEntry]:
        """Its own entries above a number, in order; none of archives. Raises JournalDamaged."""

    def drop_entries(self, through_seq: int) -> None:
        """Deletes entries up to a number, the lowest first, a portion at a time."""


class StoredJournal:
    """A journal in its database. A controller may be writing to it."""

    def __init__(self, storage: Database, folder: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        """`folder`: where its files are. Raises JournalError."""
        self._database, self._folder, self._sleep = storage, folder, sleep
        self._reader = JournalReader(storage.open_reading(), storage.place)
        self.name = self._reader.name

    def first_seq(self) -> int:
        first: int = self._reader.reading.rows("SELECT coalesce(min(seq), 0) FROM entries")[0][0]
        return first

    def last_to_leave(self) -> int:
        """The newest entry stays in any case: the next one is numbered after it."""
        oldest = min((seq for seq, _ in self._reader.snapshots()), default=0)
        return max(0, min(oldest, self._reader.last()[0] - 1))

    def kept_entries(self, after: int) -> Iterator[archive.ArchivedEntry]:
        return self._reader.kept_entries(after)

    def drop_entries(self, through_seq: int) -> None:
        """Whoever else writes gets as much time as this takes."""
        self._database.maintain(PUT_META, (archive.ARCHIVED, f"{through_seq} {self._folder.resolve()}"))
        sql = "DELETE FROM entries WHERE seq <= ? AND seq < (SELECT min(seq) FROM entries) + ?"
        began_s = time.monotonic()
        while self._database.maintain(sql, (through_seq, PORTION)):
            self._sleep(time.monotonic() - began_s)
            began_s = time.monotonic()

    def close(self) -> None:
        """Closes its connection."""
        self._reader.close()


class Archived(NamedTuple):
    """What a run has done."""

    files: list[archive.Archive]
    is_freed: bool
    """The space was given back; else new entries use it, and the journal does not get smaller."""


def archive_journal(storage: Database, folder: Path, before_wall_s: float) -> Archived:
    """Moves entries that were written before a time into files in a folder, and frees their space.

    Raises:
        JournalError: the journal or a file cannot be read or written, or the two hold different entries.
            Nothing is lost; another run goes on.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(folder), closing(StoredJournal(storage, folder)) as journal:
            files = archive_entries(journal, folder, before_wall_s)
        return Archived(files, storage.free_space())
    except OSError as error:
        raise file_error(error) from None
    except StorageError as error:
        raise JournalError(f"{storage.place}: {error}; nothing is lost, run it again") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        lock = Lock(folder / LOCK_NAME)
    except LockTaken as taken:
        raise JournalError(f"entries are being archived already (pid {taken.pid})") from None
    try:
        yield
    finally:
        lock.release()


def archive_entries(journal: Archivable, folder: Path, before_wall_s: float) -> list[archive.Archive]:
    """Moves entries that were written before a time into files, one per period; returns the new files.
    Entries that an earlier run wrote and did not delete from the journal are deleted now.

    Raises:
        JournalError: a file is damaged, or holds other entries than the journal.
    """
    (folder / archive.UNFINISHED).unlink(missing_ok=True)
    for file in archive.list_archives(folder):
        _drop(journal, file)
    limit = journal.last_to_leave()
    old = takewhile(
        lambda entry: entry.seq <= limit and entry.wall_s < before_wall_s,
        journal.kept_entries(journal.first_seq() - 1),
    )
    written = [
        archive.write_archive(folder, journal.name, entries)
        for _, entries in groupby(old, key=lambda entry: entry.wall_s // PERIOD_S)
    ]
    for file in written:
        _drop(journal, file)
    return written


def _drop(journal: Archivable, file: archive.Archive) -> None:
    """Deletes from the journal what a file holds, once both were compared."""
    first_seq = journal.first_seq()
    if not first_seq or file.last_seq < first_seq or file.first_seq > journal.last_to_leave():
        return
    after = max(first_seq, file.first_seq) - 1
    kept = journal.kept_entries(after)
    for entry in archive.read_archive(file, journal.name, after=after):
        if entry != next(kept, None):
            raise JournalError(
                f"{file.path} holds another entry {entry.seq} than the journal: it is of a past that was "
                "restored over; move it away. Nothing was changed"
            )
    journal.drop_entries(min(file.last_seq, journal.last_to_leave()))
