"""The journal, in a file and in PostgreSQL: whole groups in order, durable before anybody hears of them,
nothing skipped in silence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from cotenant.controller.domain import HostId, JobId
from cotenant.controller.store import Effect, Journal, JournalDamaged, StorageError, Uptime, let_follow, scrub
from tests.building.kept_journals import Kept, KeptInFile, KeptInPostgres, open_kept
from tests.building.postgres import Postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Kept]]:
    """Makes places of one kind, empty."""
    if request.param == "sqlite":
        folders = itertools.count()
        yield lambda: KeptInFile(tmp_path / str(next(folders)))
        return
    server: Postgres = request.getfixturevalue("postgres")
    with ExitStack() as stack:
        yield lambda: KeptInPostgres(server.url(stack.enter_context(server.database())))


@pytest.fixture
def kept(places: Callable[[], Kept]) -> Kept:
    return places()


@pytest.fixture
def other(places: Callable[[], Kept], kept: Kept) -> Kept:
    """Another of the same kind."""
    return places()


@pytest.fixture
def filled(kept: Kept) -> Kept:
    """A closed journal of five entries."""
    journal = open_kept(kept)
    journal.begin_run(b"configuration", "1.0", 100.0)
    fill(journal, 5)
    journal.close()
    return kept


def fill(journal: Journal, count: int) -> None:
    """Groups of one entry each, all durable."""
    for at in range(count):
        journal.append(float(at), 100.0 + at, b"event %d" % at, b"decision", b"commands")
        journal.seal()
    journal.flush()


def test_what_was_written_is_read_again(filled: Kept) -> None:
    journal = open_kept(filled)
    entries = list(journal.entries())
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.event for entry in entries] == [b"event %d" % at for at in range(5)]
    assert [entry.seq for entry in journal.entries(after=3)] == [4, 5]
    assert journal.runs()[0].configuration == b"configuration"
    journal.close()


def test_its_name_is_its_own_and_stays(filled: Kept, other: Kept) -> None:
    first, second = open_kept(filled), open_kept(other)
    name = first.name
    assert len(name) == 16 and name != second.name
    first.close()
    again = open_kept(filled)
    assert again.name == name
    again.close()
    second.close()


def test_effects_follow_their_commit_in_order(kept: Kept) -> None:
    handed: list[Sequence[Effect]] = []
    order: list[int] = []
    journal = open_kept(kept, hand_over=handed.append)
    reader = kept.database().open_reading()

    def look(wanted: int) -> None:
        ((count,),) = reader.rows("SELECT count(*) FROM entries")
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


def test_a_failed_commit_takes_everything_after_it_along(kept: Kept) -> None:
    failures: list[StorageError] = []
    journal = open_kept(kept, on_failure=failures.append)
    fill(journal, 3)
    make_room = kept.fill_disk(journal)
    ran: list[str] = []
    journal.append(3.0, 0.0, b"x" * 100_000, b"", b"")
    journal.seal([lambda: ran.append("too big")])
    journal.flush()
    journal.append(4.0, 0.0, b"small", b"", b"")
    journal.seal([lambda: ran.append("small, but decided on a state that is not on disk")])
    journal.flush()
    assert ran == [] and len(failures) == 1
    assert "full" in str(failures[0])
    assert not can_write(journal)

    journal.rewind()
    assert journal.last_seq == 3
    make_room()
    assert can_write(journal)
    journal.append(5.0, 0.0, b"after", b"", b"")
    journal.seal([lambda: ran.append("after")])
    journal.flush()
    assert ran == ["after"]
    assert [entry.event for entry in journal.entries()][3:] == [b"after"]
    journal.close()


def can_write(journal: Journal) -> bool:
    """The writer thread of a shared journal answers at the next question."""
    if not journal.can_write():
        journal.flush()
    return journal.can_write()


# --- Damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE entries SET event = x'00' WHERE seq = 3", "entry 3 was changed"),
        ("UPDATE entries SET now_s = 99 WHERE seq = 2", "entry 2 was changed"),
        ("UPDATE entries SET decision = x'' WHERE seq = 5", "entry 5 was changed"),
        ("DELETE FROM entries WHERE seq = 4", "entry 4 is missing"),
    ],
)
def test_a_damaged_entry_is_named_and_nothing_is_skipped(filled: Kept, sql: str, told: str) -> None:
    filled.alter(sql)
    journal = open_kept(filled)
    with pytest.raises(JournalDamaged, match=told) as caught:
        list(journal.entries())
    assert "Restore it from a backup" in str(caught.value)
    journal.close()


def test_a_damaged_snapshot_is_passed_over(kept: Kept) -> None:
    journal = open_kept(kept)
    for at in range(3):
        fill(journal, 1)
        journal.keep_snapshot(b"state %d" % at)
        journal.seal()
    journal.close()
    kept.alter("UPDATE snapshots SET data = x'00' WHERE seq = 3")
    journal = open_kept(kept)
    assert list(journal.snapshots()) == [(2, b"state 1")], "two are kept, and one of them is damaged"
    journal.close()


def test_a_scrub_reads_all_and_names_what_is_wrong(filled: Kept) -> None:
    journal = open_kept(filled)
    journal.keep_snapshot(b"state")
    journal.close()
    sound = scrub(filled.database())
    assert (sound.entries, sound.snapshots, sound.damages) == (5, 1, ())
    filled.alter("DELETE FROM entries WHERE seq = 2")
    filled.alter("UPDATE snapshots SET data = x'00'")
    assert scrub(filled.database()).damages == (
        "entry 2 is missing",
        "the snapshot after entry 5 was changed on disk",
    )


# --- Time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wall_s", "now_s"), [(150.0, 50.0), (104.0, 4.0), (20.0, 4.0)])
def test_time_goes_on_over_restarts_and_never_back(filled: Kept, wall_s: float, now_s: float) -> None:
    """The last entry was at 4 s, when the wall clock showed 104."""
    journal = open_kept(filled)
    assert journal.begin_run(b"configuration", "1.0", wall_s) == now_s
    journal.close()


def test_time_goes_on_from_the_last_start_if_nothing_happened(kept: Kept) -> None:
    for wall_s, now_s in ((1_000.0, 0.0), (1_010.0, 10.0), (500.0, 10.0), (503.0, 13.0)):
        journal = open_kept(kept)
        assert journal.begin_run(b"", "1.0", wall_s) == now_s
        journal.close()


@pytest.mark.parametrize("jump_s", [-7200.0, 0.0, 86_400.0])
def test_while_the_machine_is_up_a_jump_of_the_wall_clock_moves_nothing(filled: Kept, jump_s: float) -> None:
    """Else a controller that starts again after one ends every job that has a time limit."""
    for uptime_s, now_s in ((30.0, 4.0), (33.0, 7.0), (40.0, 14.0)):
        journal = open_kept(filled)
        wall_s = 104.0 if uptime_s == 30.0 else 104.0 + jump_s
        assert journal.begin_run(b"", "1.0", wall_s, Uptime("boot-1", uptime_s)) == now_s
        journal.close()


def test_over_a_reboot_the_wall_clock_says_how_long_it_took(filled: Kept) -> None:
    for wall_s, up, now_s in (
        (104.0, Uptime("boot-1", 900.0), 4.0),
        (164.0, Uptime("boot-2", 5.0), 64.0),
        (150.0, Uptime("boot-2", 7.0), 66.0),
        (170.0, Uptime("boot-2", 1.0), 66.0),
    ):
        journal = open_kept(filled)
        assert journal.begin_run(b"", "1.0", wall_s, up) == now_s
        journal.close()


# --- What else it keeps ----------------------------------------------------------------------------


def test_submissions_reports_and_audit_share_the_group(kept: Kept) -> None:
    journal = open_kept(kept)
    journal.append(0.0, 0.0, b"e", b"d", b"c")
    journal.keep_submission("alice", "k1", [JobId("1"), JobId("2")])
    journal.keep_audit(5.0, 0.0, "alice", 1001, "submit", "1..2", "train")
    journal.seal()
    journal.flush()
    assert journal.submission("alice", "k1") == ("1", "2")
    assert journal.submission("bob", "k1") is None, "a key is its user's own"
    assert journal.audit() == [(5.0, "alice", 1001, "submit", "1..2", "train")]
    journal.close()
    journal = open_kept(kept)
    assert journal.submission("alice", "k1") == ("1", "2"), "they outlive the process"
    journal.close()


def test_reports_are_known_at_once_and_as_they_are_kept_after_a_rewind(kept: Kept) -> None:
    journal = open_kept(kept)
    journal.keep_report(HostId("h1"), 3)
    journal.seal()
    journal.flush()
    journal.keep_report(HostId("h1"), 4)
    assert (journal.reports(), journal.is_ahead) == ({"h1": 4}, True)
    journal.rewind()
    assert (journal.reports(), journal.is_ahead) == ({"h1": 3}, False)
    journal.close()


def test_texts_of_any_kind_are_kept(kept: Kept) -> None:
    """Who submits chooses names and keys."""
    journal = open_kept(kept)
    key = "k%s?'\N{GREEK SMALL LETTER XI}\\"
    journal.keep_submission("alice", key, [JobId("7")])
    journal.keep_audit(5.0, 0.0, "alice", 1001, "submit", "7", f"{key} and a NUL: \0")
    journal.flush()
    assert journal.submission("alice", key) == ("7",)
    assert journal.audit()[0][5].startswith(f"{key} and a NUL: ")
    journal.close()
