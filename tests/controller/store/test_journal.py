"""The journal: whole groups in order, durable before anybody hears of them, nothing skipped in silence."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from cotenant.controller.domain import JobId
from cotenant.controller.store.clock import Uptime
from cotenant.controller.store.committing import Effect, let_follow
from cotenant.controller.store.journal import JOURNAL_NAME, Journal
from cotenant.controller.store.journal_file import (
    JOURNAL_VERSION,
    JournalDamaged,
    JournalError,
    check_local,
    connect,
)
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


def test_what_was_written_is_read_again(filled: Path) -> None:
    journal = a_journal(filled.parent)
    entries = list(journal.entries())
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.event for entry in entries] == [b"event %d" % at for at in range(5)]
    assert [entry.seq for entry in journal.entries(after=3)] == [4, 5]
    assert journal.runs()[0].configuration == b"configuration"
    journal.close()


def test_its_name_is_its_own_and_stays(filled: Path, tmp_path: Path) -> None:
    first, other = a_journal(filled.parent), a_journal(tmp_path / "other")
    name = first.name
    assert len(name) == 16 and name != other.name
    first.close()
    again = a_journal(filled.parent)
    assert again.name == name
    again.close()
    other.close()


def test_effects_follow_their_commit_in_order(tmp_path: Path) -> None:
    handed: list[Sequence[Effect]] = []
    order: list[int] = []
    journal = a_journal(tmp_path, hand_over=handed.append)
    reader = connect(journal.path)

    def look(wanted: int) -> None:
        (count,) = reader.execute("SELECT count(*) FROM entries").fetchone()
        assert count >= wanted, "an effect came before its entry was on disk"
        order.append(wanted)

    for at in range(1, 21):
        journal.append(float(at), 0.0, b"e", b"d", b"c")
        journal.seal([lambda at=at: look(at)])  # type: ignore[misc]
    journal.flush()
    for effects in handed:
        let_follow(effects, lambda decided: None)
    assert order == list(range(1, 21))
    assert journal.is_settled
    assert journal.commits < 20, "groups that wait together share a commit"
    reader.close()
    journal.close()


def test_a_failed_commit_takes_everything_after_it_along(tmp_path: Path) -> None:
    failures: list[sqlite3.Error] = []
    journal = a_journal(tmp_path, on_failure=failures.append)
    fill(journal, 3)
    full = journal._writer._database.execute("PRAGMA page_count").fetchone()[0]
    journal._writer._database.execute(f"PRAGMA max_page_count={full}")
    ran: list[str] = []
    journal.append(3.0, 0.0, b"x" * 100_000, b"", b"")
    journal.seal([lambda: ran.append("too big")])
    journal.flush()
    journal.append(4.0, 0.0, b"small", b"", b"")
    journal.seal([lambda: ran.append("small, but decided on a state that is not on disk")])
    journal.flush()
    assert ran == [] and len(failures) == 1
    assert "full" in str(failures[0])
    assert not journal.can_write()

    journal.rewind()
    assert journal.last_seq == 3
    journal._writer._database.execute("PRAGMA max_page_count=1000000")
    assert journal.can_write()
    journal.append(5.0, 0.0, b"after", b"", b"")
    journal.seal([lambda: ran.append("after")])
    journal.flush()
    assert ran == ["after"]
    assert [entry.event for entry in journal.entries()][3:] == [b"after"]
    journal.close()


# --- Damage ----------------------------------------------------------------------------------------


def alter(path: Path, sql: str) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute(sql)
    database.close()


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE entries SET event = x'00' WHERE seq = 3", "entry 3 was changed"),
        ("UPDATE entries SET now_s = 99 WHERE seq = 2", "entry 2 was changed"),
        ("UPDATE entries SET decision = x'' WHERE seq = 5", "entry 5 was changed"),
        ("DELETE FROM entries WHERE seq = 4", "entry 4 is missing"),
    ],
)
def test_a_damaged_entry_is_named_and_nothing_is_skipped(filled: Path, sql: str, told: str) -> None:
    alter(filled, sql)
    journal = a_journal(filled.parent)
    with pytest.raises(JournalDamaged, match=told) as caught:
        list(journal.entries())
    assert "Restore the file from a backup" in str(caught.value)
    journal.close()


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


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    for at in range(3):
        fill(journal, 1)
        journal.keep_snapshot(b"state %d" % at)
        journal.seal()
    journal.close()
    alter(tmp_path / JOURNAL_NAME, "UPDATE snapshots SET data = x'00' WHERE seq = 3")
    journal = a_journal(tmp_path)
    assert list(journal.snapshots()) == [(2, b"state 1")], "two are kept, and one of them is damaged"
    journal.close()


# --- Versions, locks, places -----------------------------------------------------------------------


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


# --- Time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wall_s", "now_s"), [(150.0, 50.0), (104.0, 4.0), (20.0, 4.0)])
def test_time_goes_on_over_restarts_and_never_back(filled: Path, wall_s: float, now_s: float) -> None:
    """The last entry was at 4 s, when the wall clock showed 104."""
    journal = a_journal(filled.parent)
    assert journal.begin_run(b"configuration", "1.0", wall_s) == now_s
    journal.close()


def test_time_goes_on_from_the_last_start_if_nothing_happened(tmp_path: Path) -> None:
    for wall_s, now_s in ((1_000.0, 0.0), (1_010.0, 10.0), (500.0, 10.0), (503.0, 13.0)):
        journal = a_journal(tmp_path)
        assert journal.begin_run(b"", "1.0", wall_s) == now_s
        journal.close()


@pytest.mark.parametrize("jump_s", [-7200.0, 0.0, 86_400.0])
def test_while_the_machine_is_up_a_jump_of_the_wall_clock_moves_nothing(filled: Path, jump_s: float) -> None:
    """Else a controller that starts again after one ends every job that has a time limit."""
    for uptime_s, now_s in ((30.0, 4.0), (33.0, 7.0), (40.0, 14.0)):
        journal = a_journal(filled.parent)
        wall_s = 104.0 if uptime_s == 30.0 else 104.0 + jump_s
        assert journal.begin_run(b"", "1.0", wall_s, Uptime("boot-1", uptime_s)) == now_s
        journal.close()


def test_over_a_reboot_the_wall_clock_says_how_long_it_took(filled: Path) -> None:
    for wall_s, up, now_s in (
        (104.0, Uptime("boot-1", 900.0), 4.0),
        (164.0, Uptime("boot-2", 5.0), 64.0),
        (150.0, Uptime("boot-2", 7.0), 66.0),
        (170.0, Uptime("boot-2", 1.0), 66.0),
    ):
        journal = a_journal(filled.parent)
        assert journal.begin_run(b"", "1.0", wall_s, up) == now_s
        journal.close()


# --- What else it keeps ----------------------------------------------------------------------------


def test_submissions_reports_and_audit_share_the_group(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.append(0.0, 0.0, b"e", b"d", b"c")
    journal.keep_submission("alice", "k1", [JobId("1"), JobId("2")])
    journal.keep_audit(5.0, 0.0, "alice", 1001, "submit", "1..2", "train")
    journal.seal()
    journal.flush()
    assert journal.submission("alice", "k1") == ("1", "2")
    assert journal.submission("bob", "k1") is None, "a key is its user's own"
    assert journal.audit() == [(5.0, "alice", 1001, "submit", "1..2", "train")]
    journal.close()
