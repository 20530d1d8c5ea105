"""Old entries leave a journal for files, in a file of SQLite and in PostgreSQL; every reader finds them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cotenant.controller import store
from cotenant.controller.store import scrub
from cotenant.controller.store.archive import list_archives
from cotenant.controller.system.locks import Lock
from tests.building.kept_journals import Kept, KeptInFile, KeptInPostgres, open_kept
from tests.building.postgres import Postgres

COUNT = 60
SNAPSHOTS = (40, 50)


@pytest.fixture(params=["sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    if request.param == "sqlite":
        yield KeptInFile(tmp_path)
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as name:
        yield KeptInPostgres(server.url(name))


@pytest.fixture
def filled(kept: Kept) -> Kept:
    """A journal of sixty entries, one a day, with two snapshots."""
    journal = open_kept(kept)
    journal.begin_run(b"configuration", "1.0", 0.0)
    for at in range(1, COUNT + 1):
        journal.append(float(at), at * 86_400.0, b"event %d" % at, random.Random(at).randbytes(300), b"")
        if at in SNAPSHOTS:
            journal.keep_snapshot(b"state")
        journal.seal()
    journal.close()
    return kept


def entries(database: store.Database, after: int = 0, limit: int | None = None) -> list[store.Entry]:
    with closing(store.JournalReader(database.open_reading(), database.place)) as reader:
        return list(reader.entries(after, limit))


def stored(kept: Kept) -> list[int]:
    with closing(kept.database().open_reading()) as reading:
        return [seq for (seq,) in reading.rows("SELECT seq FROM entries ORDER BY seq")]


def test_every_entry_is_read_as_before_wherever_it_lies(filled: Kept, tmp_path: Path) -> None:
    before = entries(filled.database())
    done = store.archive_journal(filled.database(), tmp_path, 35.5 * 86_400.0)
    assert [(each.first_seq, each.last_seq) for each in done.files] == [(1, 29), (30, 35)]
    assert stored(filled) == list(range(36, COUNT + 1))
    assert entries(filled.database()) == before
    for after in (0, 1, 28, 29, 30, 34, 35, 36, 59, 60):
        assert entries(filled.database(), after) == before[after:]
        assert entries(filled.database(), after, 7) == before[after : after + 7]


def test_what_a_start_needs_stays(filled: Kept, tmp_path: Path) -> None:
    store.archive_journal(filled.database(), tmp_path, 1e12)
    assert stored(filled) == list(range(41, COUNT + 1))
    with closing(open_kept(filled)) as journal:
        assert journal.last_seq == COUNT
        assert [seq for seq, _ in journal.snapshots()] == [50, 40]


def test_the_newest_entry_stays_even_with_a_snapshot_behind_it(filled: Kept, tmp_path: Path) -> None:
    filled.alter("DELETE FROM snapshots WHERE seq = 40")
    filled.alter("UPDATE snapshots SET seq = 60")
    store.archive_journal(filled.database(), tmp_path, 1e12)
    assert stored(filled) == [COUNT]
    with closing(open_kept(filled)) as journal:
        assert journal.append(61.0, 61.0, b"", b"", b"") == COUNT + 1


def test_its_checksums_are_right_afterwards_and_a_missing_entry_is_still_found(
    filled: Kept, tmp_path: Path
) -> None:
    store.archive_journal(filled.database(), tmp_path, 1e12)
    assert scrub(filled.database()).damages == ()
    filled.alter("DELETE FROM entries WHERE seq IN (41, 45)")
    assert scrub(filled.database()).damages == ("entry 41 is missing", "entry 45 is missing")


def test_two_at_once_do_not_get_into_each_others_way(filled: Kept, tmp_path: Path) -> None:
    lock = Lock(tmp_path / "archive.lock")
    with pytest.raises(store.JournalError, match="already"):
        store.archive_journal(filled.database(), tmp_path, 1e12)
    lock.release()
    assert store.archive_journal(filled.database(), tmp_path, 1e12).files


def test_a_file_that_is_gone_is_named(filled: Kept, tmp_path: Path) -> None:
    done = store.archive_journal(filled.database(), tmp_path, 1e12)
    done.files[0].path.unlink()
    with pytest.raises(store.JournalDamaged, match="entry 1 is missing: it was archived, and no file in"):
        entries(filled.database())
    assert len(entries(filled.database(), after=29)) == COUNT - 29


def test_a_controller_may_write_meanwhile(filled: Kept, tmp_path: Path) -> None:
    with closing(open_kept(filled)) as journal:
        done = store.archive_journal(filled.database(), tmp_path, 1e12)
        journal.append(61.0, 61.0, b"more", b"", b"")
        journal.flush()
        assert done.is_freed == isinstance(filled, KeptInPostgres)
    assert [entry.seq for entry in entries(filled.database())] == list(range(1, COUNT + 2))


def test_a_file_of_sqlite_gets_smaller_once_no_controller_runs(tmp_path: Path) -> None:
    kept = KeptInFile(tmp_path)
    journal = open_kept(kept)
    for at in range(1, COUNT + 1):
        journal.append(float(at), 0.0, random.Random(at).randbytes(20_000), b"", b"")
    journal.keep_snapshot(b"state")
    journal.close()
    before = kept.database().path.stat().st_size
    assert store.archive_journal(kept.database(), tmp_path, 1e12).is_freed
    assert kept.database().path.stat().st_size < before / 4


def test_a_copy_finds_the_files_of_its_source(filled: Kept, tmp_path: Path) -> None:
    before = entries(filled.database())
    store.archive_journal(filled.database(), tmp_path, 1e12)
    copied = KeptInFile(tmp_path / "copied").database()
    store.copy_journal(filled.database(), copied, lambda *_: None)
    assert entries(copied) == before
    assert scrub(copied).damages == ()


class Crash(BaseException):
    """The process is killed here."""


class Mortal:
    """A database whose user is killed before or after one of its statements."""

    def __init__(self, database: store.Database, statements: int, *, is_done: bool) -> None:
        self._database, self._left, self._is_done = database, statements, is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def maintain(self, sql: str, values: Sequence[object]) -> int:
        self._left -= 1
        if self._left < 0 and not self._is_done:
            raise Crash
        changed = self._database.maintain(sql, values)
        if self._left < 0:
            raise Crash
        return changed


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("statements", range(6))
def test_killed_at_any_statement_it_loses_nothing_and_a_repeat_finishes(
    filled: Kept, tmp_path: Path, statements: int, is_done: bool
) -> None:
    """Two files, and for each: a note, a deletion, and one that finds nothing more."""
    before = entries(filled.database())
    mortal: Any = Mortal(filled.database(), statements, is_done=is_done)
    with pytest.raises(Crash):
        store.archive_journal(mortal, tmp_path, 1e12)
    assert entries(filled.database()) == before
    assert scrub(filled.database()).damages == ()
    store.archive_journal(filled.database(), tmp_path, 1e12)
    assert stored(filled) == list(range(41, COUNT + 1))
    assert entries(filled.database()) == before
    assert [each.last_seq for each in list_archives(tmp_path)] == [29, 40]
