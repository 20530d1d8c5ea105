"""The tables of a journal, in SQLite's words; `postgres.py` puts them into PostgreSQL's.

Rule: a change makes a new version (`JOURNAL_VERSION`), and both kinds of journal are taken along.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SCHEMA: Final = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs(first_seq INTEGER NOT NULL, package TEXT NOT NULL, configuration BLOB NOT NULL,
    now_s REAL NOT NULL, wall_s REAL NOT NULL, pid INTEGER NOT NULL);
CREATE TABLE entries(seq INTEGER PRIMARY KEY, now_s REAL NOT NULL, wall_s REAL NOT NULL, event BLOB NOT NULL,
    decision BLOB NOT NULL, commands BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE snapshots(seq INTEGER PRIMARY KEY, data BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE submissions("user" TEXT NOT NULL, key TEXT NOT NULL, job_ids TEXT NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY("user", key)) WITHOUT ROWID;
CREATE TABLE reports(host TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE audit(id INTEGER PRIMARY KEY, wall_s REAL NOT NULL, now_s REAL NOT NULL, who TEXT NOT NULL,
    uid INTEGER NOT NULL, verb TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE quarantine(id INTEGER PRIMARY KEY, wall_s REAL NOT NULL, event BLOB NOT NULL,
    story TEXT NOT NULL);
CREATE TABLE past_jobs(number INTEGER PRIMARY KEY, "array" TEXT NOT NULL, job TEXT NOT NULL,
    phase TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX past_jobs_of_array ON past_jobs("array", job, phase);
"""
"""`past_jobs`: jobs that the engine has forgotten."""


PUT_META: Final = "INSERT INTO meta VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value"
COPYING: Final = "copying"
"""Key in `meta`: a copy into this journal is not complete; the name of the one that is copied."""

NOTICE: Final = "notice "
"""Begins the keys in `meta` of messages to people. Few wait at a time and none stays, so that they need no
table of their own, and journals with and without them are of one version."""


class JournalTable(NamedTuple):
    """A table and what tells its rows apart."""

    name: str
    columns: str
    key: str
    """Its columns in the order in which rows are copied. Rows with later keys are added later, except in
    tables that are `small`."""
    is_small: bool = False


TABLES: Final[tuple[JournalTable, ...]] = (
    JournalTable("runs", "first_seq, package, configuration, now_s, wall_s, pid", "first_seq", is_small=True),
    JournalTable("entries", "seq, now_s, wall_s, event, decision, commands, crc", "seq"),
    JournalTable("snapshots", "seq, data, crc", "seq", is_small=True),
    JournalTable("submissions", '"user", key, job_ids, seq', '"user", key'),
    JournalTable("reports", "host, sequence", "host", is_small=True),
    JournalTable("audit", "id, wall_s, now_s, who, uid, verb, target, detail", "id"),
    JournalTable("quarantine", "id, wall_s, event, story", "id"),
    JournalTable("past_jobs", 'number, "array", job, phase, data', "number"),
)
"""All but `meta`."""
