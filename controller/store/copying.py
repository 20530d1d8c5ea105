"""Copies a whole journal from one place to another: from a file to PostgreSQL, or back.

Rule: the target is marked as incomplete until all of it is there, so no controller starts with half a past.
What was cut off goes on from the last row that arrived. Both places are locked as a controller locks them,
and every entry and snapshot is checked against its checksum on the way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

from cotenant.controller.store import database, journal, sqlite
from cotenant.controller.store.schema import COPYING, NOTICE, PUT_META, TABLES, JournalTable
from cotenant.controller.system.secrets import SecretFiles

ROWS: Final = 2_000
"""So many rows at a time."""

TellsCopied = Callable[[str, int, int], None]
"""(table, rows copied, rows there are)."""


def copy_journal(
    source: database.Database, target: database.Database, progress: TellsCopied, *, portion: int = ROWS
) -> int:
    """Copies a journal to a place where there is none, or where a copy of it was cut off; returns how many
    entries it has. `portion`: so many rows at a time.

    Raises:
        JournalError: one of them is in use, the target holds something else, or a row is damaged.
    """
    reading = source.open_reading()
    try:
        with (
            closing(source.open_writing()),
            closing(target.open_writing()) as writing,
            closing(target.open_reading()) as there,
        ):
            name = journal.JournalReader(reading, source.place).name
            _check_target(there, target.place, name)
            writing.commit([(PUT_META, (COPYING, name))])
            for table in TABLES:
                _copy_table(table, reading, there, writing, source.place, progress, portion)
            _copy_secrets(source, target, reading, writing)
            clock = reading.rows("SELECT key, value FROM meta WHERE key IN ('name', 'clock', 'archived')")
            clock += reading.rows(
                "SELECT key, value FROM meta WHERE key >= ? AND key < ?", (NOTICE, f"{NOTICE}~")
            )
            done = ("DELETE FROM meta WHERE key = ?", (COPYING,))
            writing.commit([*((PUT_META, row) for row in clock), done])
            count: int = there.rows("SELECT count(*) FROM entries")[0][0]
            return count
    except database.StorageError as error:
        raise database.JournalError(f"the copy was cut off: {error}; run it again to go on") from None
    finally:
        reading.close()


def _check_target(there: database.ReadingConnection, place: str, name: str) -> None:
    under_way = there.rows("SELECT value FROM meta WHERE key = ?", (COPYING,))
    if under_way and under_way[0][0] != name:
        raise database.JournalError(f"{place} holds part of another journal: name an empty place")
    if not under_way and there.rows("SELECT 1 FROM runs LIMIT 1"):
        raise database.JournalError(f"{place} holds a journal already: name an empty place")


def _copy_secrets(
    source: database.Database,
    target: database.Database,
    reading: database.ReadingConnection,
    writing: database.WritingConnection,
) -> None:
    """Secrets of open jobs lie in a folder beside a file, and in a table beside the tables."""
    if isinstance(source, sqlite.SqliteDatabase):
        files = SecretFiles(source.path.parent / "secrets")
        found = {stem: files.get(stem) for stem in files.stems()}
    else:
        found = dict(reading.rows("SELECT stem, data FROM secrets"))
    if isinstance(target, sqlite.SqliteDatabase):
        files = SecretFiles(target.path.parent / "secrets")
        for stem, data in found.items():
            files.put(stem, data, ())
    else:
        insert = "INSERT INTO secrets VALUES(?, ?) ON CONFLICT(stem) DO UPDATE SET data = excluded.data"
        writing.commit([(insert, (stem, data)) for stem, data in found.items()])


def _copy_table(
    table: JournalTable,
    reading: database.ReadingConnection,
    there: database.ReadingConnection,
    writing: database.WritingConnection,
    place: str,
    progress: TellsCopied,
    portion: int,
) -> None:
    """Copies the rows behind the last one that is there; a small table is copied anew, whole."""
    (total,) = reading.rows(f"SELECT count(*) FROM {table.name}")[0]
    values = ", ".join("?" * len(table.columns.split(",")))
    insert = f"INSERT INTO {table.name}({table.columns}) VALUES({values})"
    if table.is_small:
        rows = reading.rows(f"SELECT {table.columns} FROM {table.name}")
        _check_rows(table, rows, place)
        writing.commit([(f"DELETE FROM {table.name}", ()), *((insert, row) for row in rows)])
        return
    keys = table.key.split(", ")
    last = there.rows(
        f"SELECT {table.key} FROM {table.name} ORDER BY {', '.join(f'{key} DESC' for key in keys)} LIMIT 1"
    )
    (count,) = there.rows(f"SELECT count(*) FROM {table.name}")[0]
    for rows in _behind(table, reading, last[0] if last else None, portion):
        _check_rows(table, rows, place)
        writing.commit([(insert, row) for row in rows])
        count += len(rows)
        progress(table.name, count, total)
    if count != total:
        raise database.JournalError(
            f"{count:,} rows of table {table.name} arrived, of {total:,}: name an empty place and copy again"
        )


def _behind(
    table: JournalTable, reading: database.ReadingConnection, last: database.StoredRow | None, portion: int
) -> Iterator[list[database.StoredRow]]:
    """The rows of a table behind a key, in the order of their keys, in portions."""
    columns = [name.strip() for name in table.columns.split(",")]
    at = [columns.index(key) for key in table.key.split(", ")]
    places = ", ".join("?" * len(at))
    while True:
        where = f"WHERE ({table.key}) > ({places})" if last else ""
        sql = f"SELECT {table.columns} FROM {table.name} {where} ORDER BY {table.key} LIMIT {portion}"
        rows = reading.rows(sql, last or ())
        if not rows:
            return
        yield rows
        last = tuple(rows[-1][index] for index in at)


def _check_rows(table: JournalTable, rows: Sequence[database.StoredRow], place: str) -> None:
    for row in rows:
        if table.name == "entries" and row[6] != database.checksum(row[1], *map(bytes, row[3:6])):
            raise database.damage_error(place, f"entry {row[0]} was changed on disk: its checksum is wrong")
        if table.name == "snapshots" and row[2] != zlib.crc32(row[1]):
            raise database.damage_error(place, f"the snapshot after entry {row[0]} was changed on disk")
