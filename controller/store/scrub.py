"""Looks at the whole journal again and again: a start reads only what follows the newest snapshot.

Rule: has a connection of its own and changes nothing. It reads a few entries at a time with pauses between
them, so neither the disk nor the loop is busy with it, and no reading transaction holds the log up for long.
What it finds stops nothing, since the state is in the snapshots; it reports it, with what it means.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.store.journal_file import checksum

BITE: Final = 200
"""Entries read at a time."""
SHARE_MAX: Final = 0.1
"""Share of the time in which it may work."""
DAMAGES_MAX: Final = 20
TABLES: Final = ("meta", "runs", "entries", "snapshots", "submissions", "reports", "audit", "quarantine")


class Scrubbed(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass found."""

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
    """One pass. `pause` is called with the time that each read took, and returns whether to go on."""
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
    """Each against its checksum, and that none is missing."""
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
