"""A journal in a file: it appears whole, belongs to one process and one user, and is cut off cleanly."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from cotenant.controller.store.database import JOURNAL_VERSION, JournalDamaged, JournalError
from cotenant.controller.store.journal import Journal
from cotenant.controller.store.sqlite import check_local
from cotenant.controller.system.paths import JOURNAL_NAME
from tests.building.journals import a_journal


def fill(journal: Journal, count: int) -> None:
    """Groups of one entry each, all on disk."""
    for at in range(count):
        journal.append(float(at), 100.0 + at, b"event %d" % at, b"decision", b"commands")
        journal.seal()
    journal.flush()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A closed journal of five entries."""
    journal = a_journal(tmp_path)
    journal.begin_run(b"configuration", "1.0", 100.0)
    fill(journal, 5)
    journal.close()
    return tmp_path / JOURNAL_NAME


def alter(path: Path, sql: str) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute(sql)
    database.close()


def test_a_truncated_file_is_an_error_that_names_it(filled: Path) -> None:
    with filled.open("r+b") as file:
        file.truncate(filled.stat().st_size // 2)
    with pytest.raises(JournalDamaged, match=r"journal\.sqlite") as caught:
        read_all(filled.parent)
    assert "\n" not in str(caught.value)


def read_all(folder: Path) -> None:
    journal = a_journal(folder)
    try:
        list(journal.entries())
    finally:
        journal.close()


def test_something_else_than_a_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_bytes(b"not a database, but long enough to be one" * 100)
    with pytest.raises(JournalDamaged, match="not a database"):
        a_journal(tmp_path)


def test_a_torn_tail_loses_whole_groups_from_the_end_only(tmp_path: Path) -> None:
    """Every length to which the log could have been cut by a crash."""
    live, cut = tmp_path / "live", tmp_path / "cut"
    journal = a_journal(live)
    for at in range(6):
        journal.append(float(at), 0.0, b"event %d" % at, b"", b"")
        journal.flush()
    wal = (live / f"{JOURNAL_NAME}-wal").read_bytes()
    shutil.copytree(live, tmp_path / "image")
    journal.close()
    seen = set()
    for length in range(0, len(wal), 997):
        shutil.copytree(tmp_path / "image", cut)
        (cut / f"{JOURNAL_NAME}-shm").unlink()
        (cut / f"{JOURNAL_NAME}-wal").write_bytes(wal[:length])
        torn = a_journal(cut)
        entries = list(torn.entries())
        assert [entry.event for entry in entries] == [b"event %d" % at for at in range(len(entries))]
        seen.add(len(entries))
        torn.close()
        shutil.rmtree(cut)
    assert len(seen) > 3, f"the cuts were meant to fall between groups, saw {seen}"


def test_a_newer_journal_is_refused_with_who_wrote_it(filled: Path) -> None:
    alter(filled, f"PRAGMA user_version={JOURNAL_VERSION + 1}")
    alter(filled, "UPDATE runs SET package = '9.9'")
    before = filled.read_bytes()
    with pytest.raises(JournalError, match=r"by cotenant 9\.9 .*upgrade cotenant here"):
        a_journal(filled.parent)
    assert filled.read_bytes() == before


def test_a_second_controller_is_told_who_is_the_first(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    with pytest.raises(JournalError, match=rf"another controller \(pid {os.getpid()}\)"):
        a_journal(tmp_path)
    journal.close()
    a_journal(tmp_path).close()


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    journal = a_journal(tmp_path / "state")
    fill(journal, 1)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    journal.close()


def test_a_network_disk_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")
    with pytest.raises(JournalError, match=r"nfs4.*set controller\.state_dir to a local disk"):
        check_local(tmp_path / "state", mounts)
    mounts.write_text(f"server:/ / nfs4 rw 0 0\n/dev/sda {tmp_path} ext4 rw 0 0\n")
    check_local(tmp_path / "state", mounts)
    mounts.write_bytes(b"x /home/ann/\xff\x1c\xc2\x85 fuse rw 0 0\n" + mounts.read_bytes())
    check_local(tmp_path / "state", mounts)  # A user mounted that, and may call it what he likes.
