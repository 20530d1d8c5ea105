"""What a journal asks of the database in which it is kept: a file of SQLite, or PostgreSQL.

Rule: the journal's statements are the same for both (`?` for each value, `ON CONFLICT`, reserved names in
quotes); a database differs in how it is opened, who may write to it, and what room it has. Errors of either
are raised as `StorageError`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

JOURNAL_VERSION: Final = 1
"""Journals of later versions are refused."""

StoredRow = tuple[Any, ...]
Statement = tuple[str, tuple[object, ...]]


class JournalError(Exception):
    """The journal cannot be used; one line with what to do."""


class JournalMissing(JournalError):
    """There is none where one was looked for."""


class JournalClosed(JournalError):
    """This account may not open it."""


class JournalUnreachable(JournalError):
    """Nobody answers where it is kept."""


class JournalDamaged(JournalError):
    """Something in it cannot be read. Nothing is skipped: a person decides."""


def file_error(error: OSError) -> JournalError:
    """Why a journal's file, or one beside it, cannot be used."""
    if not isinstance(error, PermissionError):
        return JournalError(f"{error.filename or 'a file'}: {error.strerror}")
    return JournalClosed(
        f"{error.filename} is not open to this account: run this as the controller's account, or as root"
    )


class StorageError(Exception):
    """The database did not do what it was asked: a full disk, or nobody answers."""


class StorageLost(StorageError):
    """Nobody answers, so nothing can be read, and whether a commit was made is not known."""


class LeaderReplaced(StorageError):
    """Another controller leads, so nothing was written and nothing of this one may follow."""


class ReadingConnection(Protocol):
    """A connection that reads."""

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[StoredRow]:
        """Returns the rows that a query finds. Raises StorageError."""

    def check_structure(self, table: str) -> list[str]:
        """Looks at a table beyond its rows' checksums: what is wrong with it. Raises StorageError."""

    def close(self) -> None:
        """Closes the connection."""


class WritingConnection(Protocol):
    """The one connection that writes. The writer thread alone uses it."""

    def begin(self) -> None:
        """Sets room aside at a start."""

    def commit(self, statements: Sequence[Statement]) -> None:
        """Runs statements in one transaction: all of them are durable, or none is. None at all: shows that
        this controller still leads, where others could.

        Raises:
            StorageError: none was kept; StorageLost: that is not known.
            LeaderReplaced: none was kept, because another controller leads.
        """

    def leave(self) -> None:
        """Says that this controller hands over to another, where one could follow. Raises StorageError."""

    def provide(self) -> None:
        """Called after a commit: sets room aside again. What fails here loses nothing."""

    def close(self) -> None:
        """Closes the connection, and gives up what it held."""


class Room(NamedTuple):
    """What is known of the space that a journal takes and has."""

    size_bytes: int | None
    """None: it cannot be read."""
    has_room: bool
    """There is space for more work than what is already accepted."""


class Database(Protocol):
    """Where a journal is kept."""

    place: str
    """For people: a path, or an address without its password."""

    @property
    def is_shared(self) -> bool:
        """Other controllers may wait for this one to end."""

    def open_writing(self) -> WritingConnection:
        """Makes this process the only one that writes.

        Raises:
            JournalError: another controller writes, or the journal cannot be used.
        """

    def open_reading(self, *, is_still: bool = False) -> ReadingConnection:
        """Opens a connection that reads. `is_still`: it sees what there is now and nothing that comes later.

        Raises:
            JournalError: there is no journal of this version, or nobody answers.
        """

    def room(self) -> Room:
        """Returns what is known of the space, without waiting."""

    def maintain(self, sql: str, values: Sequence[object]) -> int:
        """Runs a statement in a transaction of its own, beside a controller that may be writing; returns how
        many rows it changed. Raises StorageError."""

    def free_space(self) -> bool:
        """Gives back what deleted rows took; False: it is used again, but not given back while a controller
        runs. Raises StorageError."""


def checksum(now_s: float, event: bytes, decision: bytes, commands: bytes) -> int:
    """The checksum of an entry."""
    crc = zlib.crc32(repr(now_s).encode())
    for part in (event, decision, commands):
        crc = zlib.crc32(part, crc)
    return crc


def check_version(version: int, packages: Sequence[StoredRow], place: str) -> None:
    """Refuses a journal that this program does not fully understand. `packages`: who wrote it last.

    Raises:
        JournalError: of a later version; JournalDamaged: of none that was ever made.
    """
    if version > JOURNAL_VERSION:
        wrote = f" by cotenant {packages[0][0]}" if packages else ""
        raise JournalError(
            f"{place} was written{wrote} in journal version {version}, this program reads {JOURNAL_VERSION}: "
            "upgrade cotenant here"
        )
    if version < JOURNAL_VERSION:
        raise damage_error(place, f"it has journal version {version}, which this program does not know")


def damage_error(place: object, what: str) -> JournalDamaged:
    """The error that something of a journal cannot be read, and what to do about it."""
    return JournalDamaged(
        f"{place}: {what}. Nothing was changed. Restore it from a backup, or move it away to begin an "
        "empty journal (running jobs will then be ended)"
    )
