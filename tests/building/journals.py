"""Journals without a reserve: it would be megabytes for each, and a full disk would not be full."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final, cast

from cotenant.controller.store import Journal, SqliteDatabase, SqliteWriting

NO_RESERVE: Final = 1 << 60
"""On no disk is so much free."""


def a_journal(folder: Path, *, disk_bytes_min: int = NO_RESERVE, **more: Any) -> Journal:
    return Journal(SqliteDatabase(folder, disk_bytes_min=disk_bytes_min), **more)


def writing_of(journal: Journal) -> SqliteWriting:
    return cast(SqliteWriting, journal._writer.connection)


def file_of(journal: Journal) -> Path:
    return cast(SqliteDatabase, journal.database).path


def connection_of(journal: Journal) -> sqlite3.Connection:
    """The one that writes."""
    return writing_of(journal)._database
