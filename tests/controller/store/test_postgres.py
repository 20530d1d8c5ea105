"""A journal in PostgreSQL: one leader, fenced by its term; what was lost is found again."""

from __future__ import annotations

import queue
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from cotenant.controller.domain import JobId, Launch
from cotenant.controller.engine import EngineConfig
from cotenant.controller.notices import DeliveryResult
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.store import Fatal, Journal, JournalError, LeaderReplaced, StorageError, StorageLost
from cotenant.controller.store.database import JOURNAL_VERSION, Statement, StoredRow
from cotenant.controller.store.following import FollowingThread, TakenOver
from cotenant.controller.store.leadership import Leadership, read_following, read_leadership
from cotenant.controller.store.postgres import PostgresDatabase, PostgresWriting
from cotenant.controller.store.secret_rows import SecretRows
from cotenant.controller.system.endpoint import check_address
from cotenant.controller.system.secrets import BadSecrets, Secrets
from cotenant.controller.system.sections import NotifySettings
from cotenant.controller.wire import CommandDelivery, clients
from tests.building.limits import within_s
from tests.building.postgres import Postgres, one_postgres
from tests.controller.station import ALICE, Station, job

LEASE_S = 3.0


@pytest.fixture
def database(postgres_url: str) -> PostgresDatabase:
    made = PostgresDatabase(postgres_url, endpoint="tcp://first:1")
    made.migrate()
    return made


@pytest.fixture
def other(database: PostgresDatabase) -> PostgresDatabase:
    """The same database, as another controller sees it."""
    return PostgresDatabase(database.place, endpoint="tcp://second:1")


def put_out(database: PostgresDatabase) -> None:
    """Takes over as from a leader that is frozen, and goes."""
    while (writing := database.try_to_lead(9.0)) is None:
        pass
    writing.close()


def rows(database: PostgresDatabase, sql: str) -> list[StoredRow]:
    with closing(database.open_reading()) as reading:
        return reading.rows(sql)


def leadership(database: PostgresDatabase) -> Leadership:
    with closing(database.open_reading()) as reading:
        return read_leadership(reading)


# --- The tables ------------------------------------------------------------------------------------


def test_a_database_without_a_journal_is_not_used_before_migrate_was_asked_for(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url)
    with pytest.raises(JournalError, match="there is no journal: run `cotenant controller migrate`"):
        Journal(database)
    assert "made a journal of version 1" in database.migrate()
    name = read_name(database)
    assert "nothing was changed" in database.migrate()
    assert read_name(database) == name


def read_name(database: PostgresDatabase) -> str:
    journal = Journal(database)
    journal.close()
    return journal.name


def test_a_newer_journal_is_refused_by_all_who_would_write(database: PostgresDatabase) -> None:
    with psycopg.connect(database.place, options="-c search_path=cotenant") as connection:
        connection.execute("UPDATE meta SET value = %s WHERE key = 'version'", (str(JOURNAL_VERSION + 1),))
    for write in (database.migrate, lambda: Journal(database)):
        with pytest.raises(JournalError, match="upgrade cotenant here"):
            write()


# --- One leader ------------------------------------------------------------------------------------


def test_a_second_controller_is_told_who_leads(database: PostgresDatabase, other: PostgresDatabase) -> None:
    journal = Journal(database)
    with pytest.raises(JournalError, match=r"leads, at tcp://first:1 .* start this one with --standby"):
        Journal(other)
    journal.close()
    Journal(other).close()


def test_nothing_of_an_earlier_leader_is_written_once_a_later_one_began(
    database: PostgresDatabase, other: PostgresDatabase
) -> None:
    failures: list[StorageError] = []
    journal = Journal(database, on_failure=failures.append)
    journal.append(1.0, 1.0, b"before", b"", b"")
    journal.flush()
    put_out(other)
    ran: list[str] = []
    for at in range(3):
        journal.append(2.0 + at, 1.0, b"after", b"", b"")
        journal.seal([lambda: ran.append("an effect of a leader that was replaced")])
        journal.flush()
    assert not journal.can_write()
    journal.flush()
    assert isinstance(failures[-1], LeaderReplaced), "its connection was ended; with a new one it sees that"
    assert "tcp://second:1" in str(failures[-1]) and not ran
    assert [entry.event for entry in journal.entries()] == [b"before"]
    journal.close()


def test_the_fence_holds_where_the_lock_does_not(database: PostgresDatabase, other: PostgresDatabase) -> None:
    """A leader may be frozen between asking whether it leads and writing."""
    writing = database.open_writing()
    with psycopg.connect(other.place, options="-c search_path=cotenant") as connection:
        connection.execute("UPDATE leader SET term = term + 1")
    with pytest.raises(LeaderReplaced):
        writing.commit([("INSERT INTO reports VALUES(?, ?)", ("h1", 1))])
    writing.close()
    assert rows(database, "SELECT * FROM reports") == []


def test_a_later_term_waits_for_a_transaction_under_way(database: PostgresDatabase) -> None:
    """Else an entry of the earlier leader could become durable after the later one had read the last."""
    options = "-c search_path=cotenant -c lock_timeout=100ms"
    with (
        psycopg.connect(database.place, options=options) as earlier,
        psycopg.connect(database.place, options=options) as later,
    ):
        earlier.execute("SELECT term FROM leader FOR SHARE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            later.execute("UPDATE leader SET term = term + 1")


# --- A standby -------------------------------------------------------------------------------------


@pytest.fixture
def follow(other: PostgresDatabase) -> Iterator[Callable[[], queue.SimpleQueue[TakenOver | JournalError]]]:
    """Starts a standby; what it ends with comes out of the queue."""
    threads: list[FollowingThread] = []

    def begin() -> queue.SimpleQueue[TakenOver | JournalError]:
        ended: queue.SimpleQueue[TakenOver | JournalError] = queue.SimpleQueue()
        threads.append(FollowingThread(other, registry.make, EngineConfig(), LEASE_S, ended.put))
        threads[-1].start()
        return ended

    yield begin
    for thread in threads:
        thread.stop()


def test_a_standby_takes_over_with_all_that_was_decided(
    tmp_path: Path,
    database: PostgresDatabase,
    other: PostgresDatabase,
    follow: Callable[[], queue.SimpleQueue[TakenOver | JournalError]],
) -> None:
    station = Station(tmp_path, database=database)
    station.join("h1")
    before = [station.submit() for _ in range(3)]
    ended = follow()
    after = [station.submit() for _ in range(3)]
    station.close()
    taken = ended.get(timeout=within_s(60))
    assert isinstance(taken, TakenOver)
    state = taken.follower.state(EngineConfig())
    assert sorted(state.engine.jobs) == sorted(before + after)
    found = leadership(other)
    assert (found.endpoint, found.term) == ("tcp://second:1", 2)
    assert found.why == "the leader at tcp://first:1 had ended"
    taken.writing.close()


def test_a_leader_that_shows_no_sign_is_put_out(
    tmp_path: Path,
    database: PostgresDatabase,
    follow: Callable[[], queue.SimpleQueue[TakenOver | JournalError]],
) -> None:
    station = Station(tmp_path, database=database)
    ended = follow()
    taken = ended.get(timeout=within_s(60))
    assert isinstance(taken, TakenOver), "the station's loop does not go round, so it shows no sign"
    found = leadership(taken.database)
    assert re.fullmatch(r"the leader at tcp://first:1 had shown no sign for \d+ s", found.why)
    station.post(clients.Submit(specs=(job(),)), ALICE)
    with pytest.raises(Fatal, match="another controller leads now at tcp://second:1"):
        settle_again(station)
    station.journal.close()
    taken.writing.close()


def test_a_standby_says_how_far_it_is(
    tmp_path: Path,
    database: PostgresDatabase,
    other: PostgresDatabase,
    follow: Callable[[], queue.SimpleQueue[TakenOver | JournalError]],
) -> None:
    station = Station(tmp_path, database=database)
    station.submit()
    ended = follow()
    reading = other.open_reading()
    while not (found := read_following(reading)):
        station.journal.show_leading()
        station.journal.flush()
    assert (found[0].endpoint, found[0].seq) == ("tcp://second:1", station.core.durable_seq)
    station.close()
    ended.get(timeout=within_s(60)).writing.close()  # type: ignore[union-attr]
    assert read_following(reading) == [], "who leads does not follow"
    reading.close()


def test_a_standby_that_cannot_fold_the_journal_ends_and_says_why(
    tmp_path: Path, database: PostgresDatabase, other: PostgresDatabase
) -> None:
    """Else it would go on naming the leader, and never take over."""

    def broken(name: str, parameters: Parameters) -> Policy:
        raise ZeroDivisionError("a bug in the policy")

    station = Station(tmp_path, database=database)
    station.submit()
    ended: queue.SimpleQueue[TakenOver | JournalError] = queue.SimpleQueue()
    thread = FollowingThread(other, broken, EngineConfig(), LEASE_S, ended.put)
    thread.start()
    problem = ended.get(timeout=within_s(60))
    assert isinstance(problem, JournalError) and "cannot be followed: a bug in the policy" in str(problem)
    thread.stop()
    station.close()


# --- A lost database -------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    """One that a test may stop."""
    with one_postgres() as server:
        yield server


def settle_again(station: Station) -> None:
    """Tries to write until that works."""
    station.settle()
    while not station.core.try_again():
        station.journal.flush()
        station.settle()
    station.settle()


def test_while_the_database_is_gone_nothing_is_promised_and_then_it_goes_on(
    tmp_path: Path, own_server: Postgres
) -> None:
    with own_server.database() as name:
        database = PostgresDatabase(own_server.url(name), endpoint="tcp://first:1")
        database.migrate()
        station = Station(tmp_path, database=database)
        station.join("h1")
        first = station.submit()
        own_server.stop("immediate")
        pending = station.post(clients.Submit(specs=(job(),)), ALICE)
        station.settle()
        assert station.answers(pending) == [], "whether it was kept is not known, so nothing is said"
        refused = station.post(clients.Submit(specs=(job(),)), ALICE)
        asked = station.post(clients.ListJobs())
        station.settle()
        (no,), (untold,) = station.answers(refused), station.answers(asked)
        assert no.code == "refused" and "running jobs go on" in no.hint
        assert untold.code == "refused", "the state may hold what was never kept"
        own_server.start()
        settle_again(station)
        (answer,) = station.answers(pending)
        assert isinstance(answer, clients.Failure) and "nothing was changed" in answer.message
        assert list(station.core.state.engine.jobs) == [first]
        assert station.submit() == "2"
        station.close()


class LosesAnswers:
    """A connection that breaks between the commit and its answer."""

    def __init__(self, inner: PostgresWriting) -> None:
        self._inner = inner
        self.is_losing = False
        self.begin, self.provide = inner.begin, inner.provide
        self.leave, self.close = inner.leave, inner.close

    def commit(self, statements: Sequence[Statement]) -> None:
        self._inner.commit(statements)
        if self.is_losing:
            raise StorageLost("the answer was lost")


def test_what_was_committed_while_the_answer_was_lost_is_told_as_done(
    tmp_path: Path, database: PostgresDatabase
) -> None:
    writing = LosesAnswers(database.open_writing())
    station = Station(tmp_path, database=database, writing=writing)
    station.join("h1")
    writing.is_losing = True
    pending = station.post(clients.Submit(specs=(job(),)), ALICE)
    station.settle()
    assert station.answers(pending) == []
    writing.is_losing = False
    settle_again(station)
    (answer,) = station.answers(pending)
    assert answer.job_ids == ("1",)
    station.close()


# --- Messages to people ----------------------------------------------------------------------------


def test_a_message_is_told_by_whoever_leads_next_under_the_same_id(
    tmp_path: Path, database: PostgresDatabase, other: PostgresDatabase
) -> None:
    """Also one of which nobody knew for a while whether it was written."""
    told_by = NotifySettings(command=("tell",), smtp="")
    writing = LosesAnswers(database.open_writing())
    station = Station(tmp_path, database=database, writing=writing, notify=told_by)
    job_id = station.submit(notify=("end",))
    writing.is_losing = True
    station.post(clients.ChangeJobs(verb="cancel", job_ids=(job_id,)))
    station.settle()
    station.tick(0.5)
    assert station.deliveries.waiting == []
    writing.is_losing = False
    settle_again(station)
    station.tick(0.5)
    ((before, _),) = station.deliveries.waiting
    station.close()
    station = Station(tmp_path, database=other, notify=told_by)
    station.tick(0.5)
    ((after, then),) = station.deliveries.waiting
    then(DeliveryResult(True, True, ""))
    station.tick(0.5)
    assert after == before and station.notifier.undelivered == 0
    station.close()


# --- Secrets, and passwords ------------------------------------------------------------------------


def test_whoever_leads_next_has_the_secrets_of_jobs(
    tmp_path: Path, database: PostgresDatabase, other: PostgresDatabase
) -> None:
    journal = Journal(database)
    secrets = Secrets(SecretRows(journal))
    secrets.keep([JobId("1")], {"API_TOKEN": "t-1"})
    secrets.keep([JobId("2")], {"API_TOKEN": "t-2"})
    journal.seal()
    journal.close()
    journal = Journal(other)
    secrets = Secrets(SecretRows(journal))
    secrets.used_by([JobId("1"), JobId("2")])
    assert secrets.read(JobId("2"), ["API_TOKEN"]) == {"API_TOKEN": "t-2"}
    secrets.release(lambda job_id: job_id == "1")
    with pytest.raises(BadSecrets, match="secrets 1"):
        secrets.read(JobId("1"), ["API_TOKEN"])
    journal.seal()
    journal.close()
    assert [stem for (stem,) in rows(other, "SELECT stem FROM secrets")] == ["2"]


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://cotenant:hunter2@db/cotenant",
        "postgresql://cotenant@db/cotenant?password=hunter2",
        "postgres://cotenant@db/cotenant?sslmode=require&sslpassword=hunter2",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ValueError, match=r"put it into ~/\.pgpass") as caught:
        check_address(address)
    assert "hunter2" not in str(caught.value)


def test_tls_and_a_password_file_work_and_no_error_has_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_postgres(listen="127.0.0.1") as server, server.database() as name:
        certificate = str(server.certificate)
        place = server.tcp_url(name, sslmode="verify-full", sslrootcert=certificate)
        passwords = tmp_path / "pgpass"
        server.write_password_file(passwords)
        monkeypatch.setenv("PGPASSFILE", str(passwords))
        database = PostgresDatabase(place)
        database.migrate()
        journal = Journal(database)
        (row,) = journal.reading.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert row == (True,)
        journal.close()
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
        with pytest.raises(JournalError, match="password") as caught:
            database.migrate()
        assert "not-a-secret-in-tests" not in str(caught.value)


def test_a_host_that_nobody_answers_is_an_error_that_names_it() -> None:
    with pytest.raises(JournalError, match=r"postgresql://cotenant@127\.0\.0\.1:1/x: .*refused"):
        PostgresDatabase("postgresql://cotenant@127.0.0.1:1/x").migrate()


def test_a_job_with_secrets_starts_from_the_rows(tmp_path: Path, database: PostgresDatabase) -> None:
    station = Station(tmp_path, database=database)
    station.secrets = Secrets(SecretRows(station.journal))
    launch = Launch(argv=("x",), workdir="/tmp", secrets=("PIN",))
    station.link._secrets = station.desk._arrivals._secrets = station.secrets
    station.ask(clients.Submit(specs=(job(launch=launch),), secrets={"PIN": "1234"}), ALICE)
    address = station.join("h1")
    (delivery,) = station.told(address, CommandDelivery)
    assert delivery.secrets == {"PIN": "1234"}
    station.close()
