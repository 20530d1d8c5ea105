"""Whether all of a journal can still be read.

Rule: a start reads only what follows the newest snapshot, so the scrub looks at the whole journal again and
again. It has a connection of its own and changes nothing. It reads a few entries at a time with pauses
between them, so neither the disk nor the loop is busy with it, and no reading transaction holds the log up
for long. What it finds stops nothing, since the state is in the snapshots; it reports it, with what it means.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

import msgspec

from cotenant.controller.store import database
from cotenant.controller.store.archive import ARCHIVED
from cotenant.controller.store.schema import TABLES

BITE: Final = 200
"""Entries read at a time."""
SHARE_MAX: Final = 0.1
"""Share of the time in which it may work."""
DAMAGES_MAX: Final = 20
AGAIN_S: Final = 60.0
"""How soon a look is begun anew in which the database was lost."""


class Scrubbed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pass over the journal's file."""

    entries: int
    snapshots: int
    damages: tuple[str, ...]
    ended_s: float
    """Monotonic."""


class Scrub(threading.Thread):
    """Passes over a journal, one soon after the start and then one per period."""

    def __init__(self, storage: database.Database, every_s: float, found: Callable[[Scrubbed], None]) -> None:
        """`found` is called by this thread."""
        super().__init__(name="scrub", daemon=True)
        self._database = storage
        self._every_s = every_s
        self._found = found
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                result = scrub(self._database, self._pause)
            except (database.JournalUnreachable, database.StorageLost):
                self._stopped.wait(min(self._every_s, AGAIN_S))
                continue
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


def scrub(storage: database.Database, pause: Callable[[float], bool] = lambda worked_s: True) -> Scrubbed:
    """Reads the whole journal once and checks it. `pause` is called with the time that each read took, and
    returns whether to go on. Raises StorageLost or JournalUnreachable: nobody answers, which is no damage."""
    damages: list[str] = []
    entries = snapshots = 0
    try:
        reading = storage.open_reading()
        try:
            began_s = time.monotonic()
            for kind, count, found in chain(_entries(reading), _snapshots(reading), _structure(reading)):
                entries += count if kind == "entries" else 0
                snapshots += count if kind == "snapshots" else 0
                damages += found
                if len(damages) >= DAMAGES_MAX or not pause(time.monotonic() - began_s):
                    break
                began_s = time.monotonic()
        finally:
            reading.close()
    except (database.JournalUnreachable, database.StorageLost):
        raise
    except (database.JournalError, database.StorageError) as error:
        damages.append(f"it cannot be read: {error}")
    return Scrubbed(
        entries=entries,
        snapshots=snapshots,
        damages=tuple(damages[:DAMAGES_MAX]),
        ended_s=time.monotonic(),
    )


Bite = tuple[str, int, list[str]]
"""What it checked, how many, and what is wrong with them."""


def _entries(reading: database.ReadingConnection) -> Iterator[Bite]:
    """Checks every entry against its checksum, and that none is missing."""
    (last,) = reading.rows("SELECT coalesce(max(seq), 0) FROM entries")[0]
    for first in range(_archived_through(reading) + 1, last + 1, BITE):
        end = min(first + BITE - 1, last)
        try:
            yield "entries", end - first + 1, _wrong_entries(reading, first, end)
        except database.StorageLost:
            raise
        except database.StorageError:  # A broken page: which of them are on it?
            for seq in range(first, end + 1):
                try:
                    yield "entries", 1, _wrong_entries(reading, seq, seq)
                except database.StorageError as error:
                    yield "entries", 1, [f"entry {seq} cannot be read: {error}"]


def _wrong_entries(reading: database.ReadingConnection, first: int, last: int) -> list[str]:
    sql = "SELECT seq, now_s, event, decision, commands, crc FROM entries WHERE seq BETWEEN ? AND ?"
    sound = {
        seq: crc == database.checksum(now_s, event, decision, commands)
        for seq, now_s, event, decision, commands, crc in reading.rows(sql, (first, last))
    }
    wrong = [seq for seq in range(first, last + 1) if not sound.get(seq)]
    archived_through = _archived_through(reading) if wrong else 0  # It may have left since.
    return [
        f"entry {seq} was changed on disk: its checksum is wrong"
        if seq in sound
        else f"entry {seq} is missing"
        for seq in wrong
        if seq > archived_through
    ]


def _archived_through(reading: database.ReadingConnection) -> int:
    """The last entry that has left the journal for an archive; 0: none has."""
    found = reading.rows("SELECT value FROM meta WHERE key = ?", (ARCHIVED,))
    return int(found[0][0].partition(" ")[0]) if found else 0


def _snapshots(reading: database.ReadingConnection) -> Iterator[Bite]:
    for (seq,) in reading.rows("SELECT seq FROM snapshots"):
        try:
            found = reading.rows("SELECT data, crc FROM snapshots WHERE seq = ?", (seq,))
            sound = not found or zlib.crc32(found[0][0]) == found[0][1]  # None: a newer one has replaced it.
        except database.StorageLost:
            raise
        except database.StorageError:
            sound = False
        yield "snapshots", 1, [] if sound else [f"the snapshot after entry {seq} was changed on disk"]


def _structure(reading: database.ReadingConnection) -> Iterator[Bite]:
    """The database's own look at each table; those without checksums have no other."""
    for name in ("meta", *(table.name for table in TABLES)):
        yield name, 0, [f"table {name}: {line}" for line in reading.check_structure(name)]
