"""A flipped bit before the newest snapshot is found and named, and stops nothing."""

from __future__ import annotations

import queue
import sqlite3
from pathlib import Path

import pytest

from cotenant.controller.store import BITE, JOURNAL_NAME, Scrub, Scrubbed, SqliteDatabase, scrub
from tests.building.journals import a_journal
from tests.building.limits import within_s

MARK = b"the event of one entry"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """450 entries and a snapshot after the last; entry 7 has a text of its own."""
    journal = a_journal(tmp_path)
    for at in range(1, 451):
        journal.append(float(at), 0.0, MARK if at == 7 else b"x" * 300, b"", b"")
    journal.keep_snapshot(b"state")
    journal.close()
    return tmp_path / JOURNAL_NAME


def change(path: Path, sql: str) -> None:
    database = sqlite3.connect(path)
    database.execute(sql)
    database.commit()
    database.close()


def test_a_sound_journal_is_read_in_bites(path: Path) -> None:
    bites: list[float] = []

    def pause(worked_s: float) -> bool:
        bites.append(worked_s)
        return True

    result = scrub(SqliteDatabase(path.parent), pause)
    assert (result.entries, result.snapshots, result.damages) == (450, 1, ())
    assert len(bites) == -(-450 // BITE) + 1 + 9, "entries, a snapshot, nine tables"


def test_a_flipped_bit_before_the_newest_snapshot_is_named_and_stops_nothing(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(MARK) + 3] ^= 4
    path.write_bytes(data)
    assert scrub(SqliteDatabase(path.parent)).damages == (
        "entry 7 was changed on disk: its checksum is wrong",
    )
    journal = a_journal(path.parent)
    assert list(journal.entries(after=450)) == [], "a start reads what follows the snapshot"
    journal.close()


def test_a_broken_page_is_named_by_its_entries(path: Path) -> None:
    data = bytearray(path.read_bytes())
    page = data.index(MARK) // 4096 * 4096
    data[page : page + 64] = b"\xff" * 64
    path.write_bytes(data)
    damages = scrub(SqliteDatabase(path.parent)).damages
    assert any(damage.startswith("entry 7 ") for damage in damages), damages


def test_a_lost_entry_and_a_changed_snapshot_are_named(path: Path) -> None:
    change(path, "DELETE FROM entries WHERE seq = 9")
    change(path, "UPDATE snapshots SET data = x'00'")
    assert scrub(SqliteDatabase(path.parent)).damages == (
        "entry 9 is missing",
        "the snapshot after entry 450 was changed on disk",
    )


def test_it_stops_between_two_bites(path: Path) -> None:
    assert scrub(SqliteDatabase(path.parent), lambda worked_s: False).entries == BITE


def test_the_thread_tells_what_it_found_and_ends_at_once(path: Path) -> None:
    found: queue.SimpleQueue[Scrubbed] = queue.SimpleQueue()
    thread = Scrub(SqliteDatabase(path.parent), 86_400.0, found.put)
    thread.start()
    assert found.get(timeout=within_s(60)).damages == ()
    thread.close()
    assert not thread.is_alive()
