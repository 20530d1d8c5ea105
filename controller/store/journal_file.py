"""The journal's file: its tables, its version, and where it may lie.

Rule: a new file appears whole or not at all; one that this program does not fully understand is not
opened for writing.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import zlib
from pathlib import Path
from typing import Final

from cotenant.controller.system.files import sync_folder
from cotenant.controller.system.paths import NETWORK_DISKS

JOURNAL_VERSION: Final = 2
"""Read: this one and the one before. Newer ones are refused."""

_SCHEMA: Final = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs(first_seq INTEGER NOT NULL, package TEXT NOT NULL, configuration BLOB NOT NULL,
    now_s REAL NOT NULL, wall_s REAL NOT NULL, pid INTEGER NOT NULL);
CREATE TABLE entries(seq INTEGER PRIMARY KEY, now_s REAL NOT NULL, wall_s REAL NOT NULL, event BLOB NOT NULL,
    decision BLOB NOT NULL, commands BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE snapshots(seq INTEGER PRIMARY KEY, data BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE submissions(user TEXT NOT NULL, key TEXT NOT NULL, job_ids TEXT NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY(user, key)) WITHOUT ROWID;
CREATE TABLE reports(host TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE audit(id INTEGER PRIMARY KEY, wall_s REAL NOT NULL, now_s REAL NOT NULL, who TEXT NOT NULL,
    uid INTEGER NOT NULL, verb TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE quarantine(id INTEGER PRIMARY KEY, wall_s REAL NOT NULL, event BLOB NOT NULL,
    story TEXT NOT NULL);
"""


class JournalError(Exception):
    """The journal cannot be used; one line with what to do."""


class JournalMissing(JournalError):
    """There is none where one was looked for."""


class JournalDamaged(JournalError):
    """Something in it cannot be read. Nothing is skipped: a person decides."""


def checksum(now_s: float, event: bytes, decision: bytes, commands: bytes) -> int:
    crc = zlib.crc32(repr(now_s).encode())
    for part in (event, decision, commands):
        crc = zlib.crc32(part, crc)
    return crc


def damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"{path}: {what}. Nothing was changed. Restore the file from a backup, or move it away to begin an "
        "empty journal (running jobs will then be ended)"
    )


def connect(path: Path) -> sqlite3.Connection:
    """WAL, and every commit is flushed to the disk."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    return database


def create_if_missing(path: Path) -> None:
    """A new journal appears whole, or not at all."""
    if path.exists():
        return
    fresh = path.with_name(f".{path.name}.new")
    for leftover in (fresh, *(fresh.with_name(fresh.name + end) for end in ("-wal", "-shm", "-journal"))):
        leftover.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    database = sqlite3.connect(fresh, isolation_level=None)
    database.execute("PRAGMA synchronous=FULL")
    database.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
    database.execute("INSERT INTO meta VALUES('name', ?)", (secrets.token_hex(8),))
    database.execute(f"PRAGMA user_version={JOURNAL_VERSION}")
    database.close()
    os.replace(fresh, path)
    sync_folder(path.parent)


def raise_version(database: sqlite3.Connection) -> None:
    """Before the first entry that an older program could not read: it must refuse the file from then on."""
    database.execute(f"PRAGMA user_version={JOURNAL_VERSION}")


def check_version(database: sqlite3.Connection, path: Path) -> None:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    if version > JOURNAL_VERSION:
        package = database.execute("SELECT package FROM runs ORDER BY rowid DESC LIMIT 1").fetchone()
        wrote = f" by cotenant {package[0]}" if package else ""
        raise JournalError(
            f"{path} was written{wrote} in journal version {version}, this program reads up to "
            f"{JOURNAL_VERSION}: upgrade cotenant here"
        )
    if version < max(1, JOURNAL_VERSION - 1):
        raise damaged(path, f"it has journal version {version}, which this program does not know")


def check_local(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """SQLite's log needs a disk of this machine.

    Raises:
        JournalError: the folder lies on a network file system.
    """
    where = os.path.realpath(folder)
    best, kind = "", ""
    # Users name the folders that they mount on: in any bytes, but blanks and newlines are escaped.
    for line in mounts.read_text(errors="replace").split("\n") if mounts.exists() else ():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape", errors="replace")
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    if kind in NETWORK_DISKS:
        raise JournalError(
            f"{folder} lies on a network file system ({kind} at {best}): set controller.state_dir to a "
            "local disk"
        )
