"""Entries leave the journal only once a file holds them, and a crash at any point loses none."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.controller.store import JournalDamaged, JournalError, checksum
from cotenant.controller.store.archive import (
    ArchivedEntry,
    list_archives,
    read_archive,
    write_archive,
)
from cotenant.controller.store.archiving import PERIOD_S, archive_entries


class Crash(BaseException):
    """The process is killed here."""


def entry(seq: int, wall_s: float = 0.0) -> ArchivedEntry:
    parts = (b"event %d" % seq, b"decision", b"")
    return ArchivedEntry(seq, seq / 3, wall_s, *parts, checksum(seq / 3, *parts))


class PaperJournal:
    """A journal on paper. It can be killed after so many deletions or readings."""

    name = "0011"

    def __init__(self, entries: list[ArchivedEntry], snapshot: int) -> None:
        self.kept = entries
        self.snapshot = snapshot
        self.deletions_left = self.readings_left = 1_000_000

    def first_seq(self) -> int:
        return self.kept[0].seq if self.kept else 0

    def last_to_leave(self) -> int:
        return self.snapshot

    def kept_entries(self, after: int) -> Iterator[ArchivedEntry]:
        for each in [each for each in self.kept if each.seq > after]:
            self.readings_left -= 1
            if self.readings_left < 0:
                raise Crash
            yield each

    def drop_entries(self, through_seq: int) -> None:
        while self.kept and self.kept[0].seq <= through_seq:
            if not self.deletions_left:
                raise Crash
            self.deletions_left -= 1
            del self.kept[0]


def journal(count: int = 10, snapshot: int = 8) -> PaperJournal:
    """One entry a tenth of a period, so that ten are in one file."""
    return PaperJournal([entry(seq, (seq - 1) * PERIOD_S / 10) for seq in range(1, count + 1)], snapshot)


def everything(paper: PaperJournal, folder: Path) -> list[ArchivedEntry]:
    """What a reader finds: files up to the journal's first entry, and the journal."""
    first = paper.first_seq() or 1_000_000
    found = [
        each
        for archive in list_archives(folder)
        for each in read_archive(archive, paper.name)
        if each.seq < first
    ]
    return [*found, *paper.kept]


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    written = write_archive(tmp_path, "0011", (entry(seq) for seq in range(5, 900)))
    assert written.path.name == "journal-0000000005-0000000899.xz"
    assert list_archives(tmp_path) == [written]
    assert list(read_archive(written, "0011")) == [entry(seq) for seq in range(5, 900)]
    assert [each.seq for each in read_archive(written, "0011", after=897)] == [898, 899]


def test_a_file_of_another_journal_is_refused(tmp_path: Path) -> None:
    written = write_archive(tmp_path, "0011", [entry(1)])
    with pytest.raises(JournalDamaged, match="another journal"):
        list(read_archive(written, "2233"))


def test_a_file_is_found_damaged_wherever_it_is_cut_or_changed(tmp_path: Path) -> None:
    written = write_archive(tmp_path, "0011", [entry(seq) for seq in range(1, 40)])
    data = written.path.read_bytes()
    for at in range(0, len(data), 7):
        written.path.write_bytes(data[:at])
        with pytest.raises(JournalDamaged):
            list(read_archive(written, "0011"))
        written.path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with pytest.raises(JournalDamaged):
            list(read_archive(written, "0011"))


@pytest.mark.parametrize("wrong", [entry(3)._replace(event=b"another"), entry(4), entry(2)])
def test_an_entry_that_was_changed_or_is_missing_is_not_written(tmp_path: Path, wrong: ArchivedEntry) -> None:
    with pytest.raises(JournalDamaged, match="entry 3"):
        write_archive(tmp_path, "0011", [entry(1), entry(2), wrong])
    assert list_archives(tmp_path) == []


def test_a_name_that_promises_more_than_the_file_holds_is_found_out(tmp_path: Path) -> None:
    written = write_archive(tmp_path, "0011", [entry(1), entry(2)])
    longer = tmp_path / "journal-0000000001-0000000003.xz"
    written.path.rename(longer)
    with pytest.raises(JournalDamaged, match="ends with entry 2"):
        list(read_archive(list_archives(tmp_path)[0], "0011"))


def test_old_entries_go_into_a_file_per_period_up_to_the_oldest_snapshot(tmp_path: Path) -> None:
    paper = journal(25, snapshot=23)
    before = list(paper.kept)
    written = archive_entries(paper, tmp_path, 1e12)
    assert [(each.first_seq, each.last_seq) for each in written] == [(1, 10), (11, 20), (21, 23)]
    assert [each.seq for each in paper.kept] == [24, 25]
    assert everything(paper, tmp_path) == before


def test_only_what_is_older_goes(tmp_path: Path) -> None:
    paper = journal(25, snapshot=23)
    archive_entries(paper, tmp_path, PERIOD_S)
    assert paper.first_seq() == 11
    assert archive_entries(paper, tmp_path, PERIOD_S) == []
    archive_entries(paper, tmp_path, 2 * PERIOD_S)
    assert paper.first_seq() == 21


def test_without_a_snapshot_nothing_goes(tmp_path: Path) -> None:
    paper = journal(10, snapshot=0)
    assert archive_entries(paper, tmp_path, 1e12) == []
    assert len(paper.kept) == 10


@pytest.mark.parametrize("deletions", range(24))
def test_killed_while_it_deletes_it_loses_nothing_and_a_repeat_finishes(
    tmp_path: Path, deletions: int
) -> None:
    paper = journal(25, snapshot=23)
    before = list(paper.kept)
    paper.deletions_left = deletions
    if deletions < 23:
        with pytest.raises(Crash):
            archive_entries(paper, tmp_path, 1e12)
    assert everything(paper, tmp_path) == before
    paper.deletions_left = 1_000
    archive_entries(paper, tmp_path, 1e12)
    assert everything(paper, tmp_path) == before
    assert [each.seq for each in paper.kept] == [24, 25]


@pytest.mark.parametrize("readings", range(1, 50))
def test_killed_while_it_writes_or_compares_it_loses_nothing_and_a_repeat_finishes(
    tmp_path: Path, readings: int
) -> None:
    """23 entries are read to be written, and once more to be compared."""
    paper = journal(25, snapshot=23)
    before = list(paper.kept)
    paper.readings_left = readings
    if readings <= 46:
        with pytest.raises(Crash):
            archive_entries(paper, tmp_path, 1e12)
    paper.readings_left = 1_000
    assert everything(paper, tmp_path) == before
    archive_entries(paper, tmp_path, 1e12)
    assert everything(paper, tmp_path) == before
    assert [each.seq for each in paper.kept] == [24, 25]
    assert all(path.name.startswith("journal-") for path in tmp_path.iterdir())


def test_a_file_that_was_written_before_the_machine_died_is_used(tmp_path: Path) -> None:
    paper = journal(25, snapshot=23)
    before = list(paper.kept)
    write_archive(tmp_path, paper.name, before[:7])
    (tmp_path / ".journal-archive.new").write_bytes(b"half of another")
    written = archive_entries(paper, tmp_path, 1e12)
    assert [(each.first_seq, each.last_seq) for each in written] == [(8, 10), (11, 20), (21, 23)]
    assert everything(paper, tmp_path) == before


def test_a_journal_restored_over_keeps_what_a_file_does_not_hold(tmp_path: Path) -> None:
    """It was put back from a copy that is older than the file, and went on in another way."""
    archive_entries(journal(10, snapshot=8), tmp_path, 1e12)
    again = journal(10, snapshot=8)
    again.kept[6] = again.kept[6]._replace(
        event=b"else", crc=checksum(again.kept[6].now_s, b"else", b"decision", b"")
    )
    with pytest.raises(JournalError, match="another entry 7"):
        archive_entries(again, tmp_path, 1e12)
    assert len(again.kept) == 10


def test_files_that_are_no_archives_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "journal-copy.xz").write_bytes(lzma.compress(b"mine"))
    assert list_archives(tmp_path) == []
