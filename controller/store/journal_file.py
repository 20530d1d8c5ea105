"""The journal's file: its tables, its version, where it may lie, and whether all of it can still be read.

Rule: a new file appears whole or not at all; one that this program does not fully understand is not opened
for writing.

Rule: a start reads only what follows the newest snapshot, so the scrub looks at the whole journal again and
again. It has a connection of its own and changes nothing. It reads a few entries at a time with pauses
between them, so neither the disk nor the loop is busy with it, and no reading transaction holds the log up
for long. What it finds stops nothing, since the state is in the snapshots; it reports it, with what it means.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.system.files import sync_folder
from cotenant.controller.system.paths import NETWORK_DISKS

JOURNAL_VERSION: Final = 1
"""Journals of all other versions are refused."""

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
CREATE TABLE past_jobs(number INTEGER PRIMARY KEY, array TEXT NOT NULL, job TEXT NOT NULL,
    phase TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX past_jobs_of_array ON past_jobs(array, job, phase);
"""
"""`past_jobs`: jobs that the engine has forgotten."""


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


def damage_error(path: Path, what: str) -> JournalDamaged:
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


def check_version(database: sqlite3.Connection, path: Path) -> None:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    if version > JOURNAL_VERSION:
        package = database.execute("SELECT package FROM runs ORDER BY rowid DESC LIMIT 1").fetchone()
        wrote = f" by cotenant {package[0]}" if package else ""
        raise JournalError(
            f"{path} was written{wrote} in journal version {version}, this program reads {JOURNAL_VERSION}: "
            "upgrade cotenant here"
        )
    if version < JOURNAL_VERSION:
        raise damage_error(path, f"it has journal version {version}, which this program does not know")


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


BITE: Final = 200
"""Entries read at a time."""
SHARE_MAX: Final = 0.1
"""Share of the time in which it may work."""
DAMAGES_MAX: Final = 20
TABLES: Final = (
    "meta",
    "runs",
    "entries",
    "snapshots",
    "submissions",
    "reports",
    "audit",
    "quarantine",
    "past_jobs",
)


class Scrubbed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pass over the journal's file."""

    entries: int
    snapshots: int
    damages: tuple[str, ...]
    ended_s: float
    """Monotonic."""


class Scrub(threading.Thread):
    """Passes over a journal, one soon after the start and then one per period."""

    def __init__(self, path: Path, every_s: float, found: Callable[[Scrubbed], None]) -> None:
        """`found` is called by this thread."""
        super().__init__(name="scrub", daemon=True)
        self._path = path
        self._every_s = every_s
        self._found = found
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            result = scrub(self._path, self._pause)
            if self._stopped.is_set():
                return
            self._found(result)
            self._stopped.wait(self._every_s)

    def _pause(self, worked_s: float) -> bool:
        """Whether to go on."""
        return not self._stopped.wait(worked_s * (1 / SHARE_MAX - 1))

    def close(self) -> None:
        self._stopped.set()
        self.join()


def scrub(path: Path, pause: Callable[[float], bool] = lambda worked_s: True) -> Scrubbed:
    """Reads the whole journal once and checks it. `pause` is called with the time that each read took, and
    returns whether to go on."""
    damages: list[str] = []
    entries = snapshots = 0
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            began_s = time.monotonic()
            for kind, count, found in chain(_entries(database), _snapshots(database), _pages(database)):
                entries += count if kind == "entries" else 0
                snapshots += count if kind == "snapshots" else 0
                damages += found
                if len(damages) >= DAMAGES_MAX or not pause(time.monotonic() - began_s):
                    break
                began_s = time.monotonic()
        finally:
            database.close()
    except sqlite3.Error as error:
        damages.append(f"it cannot be read: {error}")
    return Scrubbed(
        entries=entries,
        snapshots=snapshots,
        damages=tuple(damages[:DAMAGES_MAX]),
        ended_s=time.monotonic(),
    )


Bite = tuple[str, int, list[str]]
"""What it checked, how many, and what is wrong with them."""


def _entries(database: sqlite3.Connection) -> Iterator[Bite]:
    """Checks every entry against its checksum, and that none is missing."""
    last: int = database.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()[0]
    for first in range(1, last + 1, BITE):
        end = min(first + BITE - 1, last)
        try:
            yield "entries", end - first + 1, _wrong_entries(database, first, end)
        except sqlite3.DatabaseError:  # A broken page: which of them are on it?
            for seq in range(first, end + 1):
                try:
                    yield "entries", 1, _wrong_entries(database, seq, seq)
                except sqlite3.DatabaseError as error:
                    yield "entries", 1, [f"entry {seq} cannot be read: {error}"]


def _wrong_entries(database: sqlite3.Connection, first: int, last: int) -> list[str]:
    sql = "SELECT seq, now_s, event, decision, commands, crc FROM entries WHERE seq BETWEEN ? AND ?"
    sound = {
        seq: crc == checksum(now_s, event, decision, commands)
        for seq, now_s, event, decision, commands, crc in database.execute(sql, (first, last)).fetchall()
    }
    return [
        f"entry {seq} was changed on disk: its checksum is wrong"
        if seq in sound
        else f"entry {seq} is missing"
        for seq in range(first, last + 1)
        if not sound.get(seq)
    ]


def _snapshots(database: sqlite3.Connection) -> Iterator[Bite]:
    for (seq,) in database.execute("SELECT seq FROM snapshots").fetchall():
        try:
            row = database.execute("SELECT data, crc FROM snapshots WHERE seq = ?", (seq,)).fetchone()
            sound = row is None or zlib.crc32(row[0]) == row[1]  # None: a newer one has replaced it.
        except sqlite3.DatabaseError:
            sound = False
        yield "snapshots", 1, [] if sound else [f"the snapshot after entry {seq} was changed on disk"]


def _pages(database: sqlite3.Connection) -> Iterator[Bite]:
    """SQLite's own look at the structure of each table; those without checksums have no other."""
    for table in TABLES:
        found = [row[0] for row in database.execute(f"PRAGMA quick_check({table})").fetchall()]
        yield table, 0, [f"table {table}: {line}" for line in found if line != "ok"]
