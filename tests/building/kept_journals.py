"""Journals under test, wherever they are kept: what every kind of database must do is tested with both."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psycopg

from cotenant.controller.store import Database, Journal, PostgresDatabase, SqliteDatabase
from tests.building.journals import NO_RESERVE


class Kept(Protocol):
    """A place of one journal."""

    def database(self) -> Database: ...

    def alter(self, sql: str) -> None:
        """Changes it behind the back of whoever writes to it."""

    def fill_disk(self, journal: Journal) -> Callable[[], None]:
        """From now on nothing can be written; the answer undoes it."""


class KeptInFile:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def database(self) -> SqliteDatabase:
        return SqliteDatabase(self._folder, disk_bytes_min=NO_RESERVE)

    def alter(self, sql: str) -> None:
        connection = sqlite3.connect(self.database().path)
        with connection:
            connection.execute(sql)
        connection.close()

    def fill_disk(self, journal: Journal) -> Callable[[], None]:
        connection: sqlite3.Connection = journal._writer.connection._database  # type: ignore[attr-defined]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        return lambda: connection.execute("PRAGMA max_page_count=1000000").close()


class KeptInPostgres:
    def __init__(self, address: str) -> None:
        self._address = address
        self.database().migrate()

    def database(self) -> PostgresDatabase:
        return PostgresDatabase(self._address)

    def alter(self, sql: str) -> None:
        sql = sql.replace("x'00'", r"'\x00'").replace("x''", r"'\x'")
        with psycopg.connect(self._address, options="-c search_path=cotenant") as connection:
            connection.execute(sql)

    def fill_disk(self, journal: Journal) -> Callable[[], None]:
        """A real full disk ends the whole server's writing; the error is the same."""
        self.alter(_FULL)
        return lambda: self.alter("DROP FUNCTION refuse CASCADE")


_FULL = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: the disk is full' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_entries BEFORE INSERT ON entries EXECUTE FUNCTION refuse();
CREATE TRIGGER full_meta BEFORE INSERT ON meta EXECUTE FUNCTION refuse();
"""


def open_kept(kept: Kept, **more: Any) -> Journal:
    return Journal(kept.database(), **more)
