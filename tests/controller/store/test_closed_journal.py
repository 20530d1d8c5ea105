"""A journal that this account may not open: one sentence with what to do, whoever reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.controller.sim.past.journal import find_journal
from cotenant.controller.store import JournalClosed, JournalError, SqliteDatabase, archive_journal, file_error

WHAT_TO_DO = "run this as the controller's account, or as root"
as_a_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "journal.sqlite").touch()
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)


@as_a_user
def test_each_reader_says_what_to_do(closed: Path) -> None:
    with pytest.raises(JournalClosed, match=WHAT_TO_DO):
        find_journal(closed)
    with pytest.raises(JournalClosed, match=WHAT_TO_DO):
        SqliteDatabase(closed).open_reading()
    with pytest.raises(JournalClosed, match=WHAT_TO_DO):
        archive_journal(SqliteDatabase(closed), closed, 0.0)


def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path: Path) -> None:
    assert WHAT_TO_DO in str(file_error(PermissionError(13, "Permission denied", "/x/journal.sqlite")))
    with pytest.raises(JournalError, match="File name too long"):
        find_journal(tmp_path / ("x" * 300))
