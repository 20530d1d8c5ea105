"""A journal in a file of SQLite: one file on a local disk, one controller.

Rule: a new file appears whole or not at all; one that this program does not fully understand is not opened
for writing.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from cotenant.controller.store import database
from cotenant.controller.store.reserve import DISK_BYTES_MIN, Reserve
from cotenant.controller.store.schema import SCHEMA
from cotenant.controller.system.files import sync_folder
from cotenant.controller.system.locks import Lock, LockTaken
from cotenant.controller.system.paths import JOURNAL_NAME, NETWORK_DISKS, mount_of

LOCK_NAME: Final = "controller.lock"
ROOM_BYTES_MIN: Final = 32 * 1024 * 1024
"""With less free space than this no new submission is accepted: what runs must still be journalled."""
_WHO_WROTE: Final = "SELECT package FROM runs ORDER BY first_seq DESC LIMIT 1"


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise database.StorageError(str(error)) from error


class SqliteReading:
    """A connection to the file that reads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._database = connection

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[database.StoredRow]:
        """Returns the rows that a query finds. Raises StorageError."""
        with _own_errors():
            return self._database.execute(sql, tuple(values)).fetchall()

    def check_structure(self, table: str) -> list[str]:
        """SQLite's own look at the structure of a table."""
        found = (row[0] for row in self.rows(f"PRAGMA quick_check({table})"))
        return [line for line in found if line != "ok"]

    def close(self) -> None:
        """Closes the connection."""
        self._database.close()


class SqliteWriting:
    """The connection that writes, with the room it keeps and the lock that makes it the only one."""

    def __init__(self, connection: sqlite3.Connection, reserve: Reserve, release: Callable[[], None]) -> None:
        self._database = connection
        self._reserve = reserve
        self._release = release

    def begin(self) -> None:
        """Sets space of the disk aside, while it has some. Raises StorageError."""
        with _own_errors():
            self._reserve.begin()

    def provide(self) -> None:
        """Replaces what a commit took of it. Raises StorageError."""
        with _own_errors():
            self._reserve.refill()

    def commit(self, statements: Sequence[database.Statement]) -> None:
        """Runs statements in one transaction, with one flush of the disk. Raises StorageError."""
        if not statements:
            return
        with _own_errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                for sql, row in statements:
                    self._database.execute(sql, row)
                self._database.execute("COMMIT")
            except sqlite3.Error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def commit_alone(self, sql: str) -> None:
        """Runs what cannot be part of a transaction. Raises StorageError."""
        with _own_errors():
            self._database.execute(sql)

    def leave(self) -> None:
        """Nobody could follow."""

    def close(self) -> None:
        """Closes the file and releases the lock."""
        self._database.close()
        self._release()


class SqliteDatabase:
    """A file in a folder of this machine."""

    is_shared = False

    def __init__(
        self, folder: Path, name: str = JOURNAL_NAME, *, disk_bytes_min: int = DISK_BYTES_MIN
    ) -> None:
        """`disk_bytes_min`: with less free space nothing is set aside."""
        self.path = folder / name
        self.place = str(self.path)
        self._disk_bytes_min = disk_bytes_min

    def open_writing(self) -> SqliteWriting:
        """Locks the folder, and makes the file if there is none.

        Raises:
            JournalError: locked by another controller, on a network disk, of another version, damaged.
        """
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_local(folder)
        try:
            lock = Lock(folder / LOCK_NAME)
        except LockTaken as taken:
            raise database.JournalError(
                f"another controller (pid {taken.pid}) uses {folder}: stop it, or set controller.state_dir"
            ) from None
        try:
            create_if_missing(self.path)
            connection = connect(self.path)
            _check(connection, self.path)
            return SqliteWriting(
                connection, Reserve(self.path, connection, self._disk_bytes_min), lock.release
            )
        except sqlite3.Error as error:
            lock.release()
            raise database.damage_error(self.path, str(error)) from None
        except database.JournalError:
            lock.release()
            raise

    def open_reading(self, *, is_still: bool = False) -> SqliteReading:
        """Opens the file to be read. It can also be read while a controller writes to it.

        Raises:
            JournalError: no journal, or of another version, or it cannot be read.
        """
        try:
            connection = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=30.0,
            )
            if is_still:
                connection.execute("BEGIN")
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                raise database.JournalError(f"{self.path} is no journal of cotenant")
            _check(connection, self.path)
        except sqlite3.Error as error:
            try:
                self.path.open("rb").close()  # SQLite has one word for whatever is wrong with a file.
            except OSError as reason:
                raise database.file_error(reason) from None
            raise database.JournalError(f"{self.path} cannot be read: {error}") from None
        return SqliteReading(connection)

    def room(self) -> database.Room:
        """The size of the file with SQLite's log beside it, and what the disk has left."""
        size: int | None = None
        with suppress(OSError):
            size = self.path.stat().st_size
            with suppress(OSError):  # There is none while nothing waits to be merged.
                size += self.path.with_name(f"{self.path.name}-wal").stat().st_size
        space = os.statvfs(self.path.parent)
        return database.Room(size, space.f_bavail * space.f_frsize >= ROOM_BYTES_MIN)

    def maintain(self, sql: str, values: Sequence[object]) -> int:
        """Runs a statement in a transaction of its own, beside a controller that may be writing; returns how
        many rows it changed. Raises StorageError."""
        with _own_errors(), closing(connect(self.path)) as connection:
            return connection.execute(sql, tuple(values)).rowcount

    def free_space(self) -> bool:
        """Makes the file smaller, if no controller runs: it could not write for as long as that takes."""
        try:
            writing = self.open_writing()
        except database.JournalError:
            return False
        with closing(writing):
            writing.commit_alone("VACUUM")
        return True


def connect(path: Path) -> sqlite3.Connection:
    """WAL, and every commit is flushed to the disk."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def create_if_missing(path: Path) -> None:
    """A new journal appears whole, or not at all."""
    if path.exists():
        return
    fresh = path.with_name(f".{path.name}.new")
    for leftover in (fresh, *(fresh.with_name(fresh.name + end) for end in ("-wal", "-shm", "-journal"))):
        leftover.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection = sqlite3.connect(fresh, isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    connection.executescript(f"BEGIN;{SCHEMA}COMMIT;")
    connection.execute("INSERT INTO meta VALUES('name', ?)", (secrets.token_hex(8),))
    connection.execute(f"PRAGMA user_version={database.JOURNAL_VERSION}")
    connection.close()
    os.replace(fresh, path)
    sync_folder(path.parent)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    packages = connection.execute(_WHO_WROTE).fetchall() if version else []
    database.check_version(version, packages, str(path))


def check_local(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """SQLite's log needs a disk of this machine.

    Raises:
        JournalError: the folder lies on a network file system.
    """
    text = mounts.read_text(errors="replace") if mounts.exists() else ""
    best, kind = mount_of(os.path.realpath(folder), text)
    if kind in NETWORK_DISKS:
        raise database.JournalError(
            f"{folder} lies on a network file system ({kind} at {best}): set controller.state_dir to a "
            "local disk"
        )
