"""A journal in PostgreSQL, for sites with a standby: one controller leads and writes, others follow.

Rule: an advisory lock says who may try to lead, but it is no fence: a leader may be frozen between asking
and writing. The fence is the term, a number in the one row of `leader`. Every transaction of a leader reads
that row `FOR SHARE` and is refused unless it holds the leader's own term; whoever takes over adds one to it,
which waits for transactions under way. So no transaction of an earlier leader follows one of a later.

Rule: nobody compares clocks. A leader counts up `beat` as long as its loop goes round and its writes arrive;
who follows looks at it by a monotonic clock of its own.
"""

from __future__ import annotations

import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

from cotenant.controller.store import database
from cotenant.controller.store.leadership import HOLDERS, LEADER_LOCK, Leadership, read_leadership
from cotenant.controller.store.schema import SCHEMA
from cotenant.controller.system.endpoint import check_address

# A connection that broke in the middle of a transaction is no news: it is said by who needed it.
logging.getLogger("psycopg").setLevel(logging.ERROR)

NAMESPACE: Final = "cotenant"
"""The schema with the journal's tables, and the channel on which a commit is announced."""
BEAT_S: Final = 1.0
"""How often a leader shows that it leads, at most."""
FREE_S: Final = 1.0
"""So long the server may take to notice that a leader has closed its connection."""
SIZE_EVERY_S: Final = 60.0
_TABLES: Final = """
CREATE TABLE leader(one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one), term BIGINT NOT NULL,
    backend BIGINT NOT NULL, endpoint TEXT NOT NULL, host TEXT NOT NULL, since_s DOUBLE PRECISION NOT NULL,
    why TEXT NOT NULL, leaves BOOLEAN NOT NULL);
INSERT INTO leader VALUES(TRUE, 0, 0, '', '', 0, '', FALSE);
CREATE TABLE beats(one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one), beat BIGINT NOT NULL);
INSERT INTO beats VALUES(TRUE, 0);
CREATE TABLE standbys(endpoint TEXT PRIMARY KEY, host TEXT NOT NULL, seq BIGINT NOT NULL,
    seen TIMESTAMPTZ NOT NULL);
CREATE TABLE secrets(stem TEXT PRIMARY KEY, data BYTEA NOT NULL);
"""
"""What only PostgreSQL has: who leads, whether it goes on, who follows, and the secrets of jobs, which lie in
files beside a file."""
_PUT_OUT: Final = f"SELECT pg_terminate_backend(pid) {HOLDERS}"
"""Ends the connection that holds the lock of the leader."""
_SESSION: Final = {
    "application_name": "cotenant",
    "connect_timeout": "3",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "4000",
    "options": f"-c search_path={NAMESPACE} -c idle_in_transaction_session_timeout=5s -c lock_timeout=3s",
}
"""A connection whose other end is gone is noticed within seconds. What the address says goes before."""


def _in_one_line(error: Exception) -> str:
    """What went wrong, without libpq's guesses about why."""
    return " ".join(str(error).partition("This probably means")[0].split())


@cache
def _driver() -> Any:
    """psycopg, which only who has such a journal needs. Raises JournalError: it is not installed."""
    try:
        import psycopg
    except ImportError:
        raise database.JournalError("a journal in PostgreSQL needs psycopg: pip install '.[ha]'") from None
    return psycopg


@cache
def _in_its_words(sql: str) -> Any:
    """A statement with PostgreSQL's placeholders."""
    return sql.replace("?", "%s")


@contextmanager
def _own_errors(lose: Callable[[], None], connection: Any) -> Iterator[None]:
    """Errors as the journal knows them. A connection that is broken is given up."""
    try:
        yield
    except _driver().Error as error:
        text = _in_one_line(error)
        if connection is None or connection.closed or connection.broken:
            lose()
            raise database.StorageLost(text) from error
        raise database.StorageError(text) from error


class PostgresReading:
    """A connection that reads, and is made again when it was lost."""

    def __init__(self, connect: Callable[[], Any], *, is_still: bool) -> None:
        self._connect = connect
        self._is_still = is_still
        self._connection: Any = None
        self.rows("SELECT 1")

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[database.StoredRow]:
        """Returns the rows that a query finds. Raises StorageError."""
        connection = self._open()
        with _own_errors(self.close, connection):
            found: list[database.StoredRow] = connection.execute(_in_its_words(sql), values).fetchall()
            return found

    def _open(self) -> Any:
        if self._connection is None:
            with _own_errors(self.close, None):
                self._connection = self._connect()
                if self._is_still:
                    self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return self._connection

    def wait(self, timeout_s: float) -> None:
        """Returns when something was committed, or after this time. Raises StorageError."""
        connection = self._open()
        with _own_errors(self.close, connection):
            connection.execute(f"LISTEN {NAMESPACE}")
            for _ in connection.notifies(timeout=timeout_s, stop_after=1):
                pass

    def check_structure(self, table: str) -> list[str]:
        """Reads a table whole; PostgreSQL names a broken page itself."""
        try:
            self.rows(f"SELECT sum(length(t::text)) FROM {table} t")
        except database.StorageLost:
            raise
        except database.StorageError as error:
            return [str(error)]
        return []

    def close(self) -> None:
        """Closes the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(_driver().Error):
                connection.close()


class PostgresWriting:
    """The connection of the leader. It holds the lock, and every transaction of it checks the term."""

    def __init__(self, storage: PostgresDatabase, connection: Any, term: int) -> None:
        self._database = storage
        self._connection: Any = connection
        self.term = term
        self._beat_s = self._size_s = 0.0

    def begin(self) -> None:
        """Measures what the journal takes."""
        self._measure()

    def commit(self, statements: Sequence[database.Statement]) -> None:
        """Runs statements in one transaction, after the check that this controller still leads.

        Raises:
            LeaderReplaced: it does not.
            StorageLost: nobody answers, and whether the transaction was committed is not known.
            StorageError: nothing was kept.
        """
        beats = time.monotonic() - self._beat_s >= BEAT_S
        if not statements and not beats:
            return
        connection = self._open()
        with _own_errors(self._lose, connection):
            try:
                self._transact(connection, statements, beats)
            except BaseException:
                if not connection.closed and not connection.broken:
                    connection.execute("ROLLBACK")
                raise
        if beats:
            self._beat_s = time.monotonic()

    def _transact(self, connection: Any, statements: Sequence[database.Statement], beats: bool) -> None:
        """Two round trips: the fence is asked first, then all the rest goes out at once."""
        with connection.pipeline():
            connection.execute("BEGIN")
            self._check_term(connection)
            for sql, row in statements:
                connection.execute(_in_its_words(sql), [_storable(value) for value in row])
            if statements:
                connection.execute(f"NOTIFY {NAMESPACE}")
            if beats:
                connection.execute("UPDATE beats SET beat = beat + 1")
            connection.execute("COMMIT")

    def _check_term(self, connection: Any) -> None:
        """Refuses to go on once a later leader began; until this transaction ends none can begin."""
        found = connection.execute("SELECT term, endpoint, why FROM leader FOR SHARE").fetchone()
        if found is None or found[0] != self.term:
            raise database.LeaderReplaced(_superseded(found))

    def _open(self) -> Any:
        """The connection, made again if it was lost: the lock is taken again, unless someone else leads."""
        if self._connection is not None:
            return self._connection
        with _own_errors(self._lose, None):
            connection = self._database.connect()
            self._connection = connection
        with _own_errors(self._lose, connection):
            found = connection.execute("SELECT term, endpoint, why FROM leader").fetchone()
            if found is None or found[0] != self.term:
                raise database.LeaderReplaced(_superseded(found))
            # The server may not have noticed yet that our last connection is gone.
            put_out = f"{_PUT_OUT} AND pid = (SELECT backend FROM leader)"
            connection.execute(_in_its_words(put_out), (LEADER_LOCK,))
            if not connection.execute("SELECT pg_try_advisory_lock(%s)", (LEADER_LOCK,)).fetchone()[0]:
                self._lose()
                raise database.StorageLost("the lock of the leader is not free yet")
            own = "UPDATE leader SET backend = pg_backend_pid() WHERE term = %s"
            if connection.execute(own, (self.term,)).rowcount != 1:
                raise database.LeaderReplaced(_superseded(None))
        return connection

    def provide(self) -> None:
        """Measures, now and then, what the journal takes."""
        if time.monotonic() - self._size_s >= SIZE_EVERY_S:
            self._measure()

    def _measure(self) -> None:
        self._size_s = time.monotonic()
        sql = (
            "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'"
        )
        if self._connection is not None:
            with _own_errors(self._lose, self._connection):
                self._database.size_bytes = self._connection.execute(sql, (NAMESPACE,)).fetchone()[0]

    def leave(self) -> None:
        """Says that this leader hands over, so that its successor can say why. Raises StorageError."""
        connection = self._open()
        with _own_errors(self._lose, connection):
            connection.execute("UPDATE leader SET leaves = TRUE WHERE term = %s", (self.term,))

    def _lose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(_driver().Error):
                connection.close()

    def close(self) -> None:
        """Closes the connection, and with it the lock is free."""
        self._lose()


class PostgresDatabase:
    """The journal in the schema `cotenant` of one database."""

    is_shared = True

    def __init__(self, address: str, *, endpoint: str = "") -> None:
        """`endpoint`: where this controller is asked, for those who read who leads.

        Raises:
            JournalError: psycopg is not installed, or the address holds a password.
        """
        _driver()
        try:
            self.place = check_address(address)
        except ValueError as error:
            raise database.JournalError(f"controller.journal {error}") from None
        self.endpoint = endpoint
        self.size_bytes: int | None = None

    def connect(self) -> Any:
        """Opens a connection. Raises _driver().Error."""
        given = _driver().conninfo.conninfo_to_dict(self.place)
        own: dict[str, Any] = {
            key: value for key, value in _SESSION.items() if key == "options" or key not in given
        }
        if "options" in given:
            own["options"] = f"{given['options']} {_SESSION['options']}"
        return _driver().connect(self.place, autocommit=True, **own)

    def _problem(self, error: Exception) -> database.JournalError:
        lost = isinstance(error, database.StorageLost | _driver().OperationalError)
        kind = database.JournalUnreachable if lost else database.JournalError
        return kind(f"{self.place}: {_in_one_line(error)}")

    # --- Opening -----------------------------------------------------------------------------------

    def open_reading(self, *, is_still: bool = False) -> PostgresReading:
        """Opens a connection that reads.

        Raises:
            JournalError: no journal of this version, or nobody answers.
        """
        try:
            reading = PostgresReading(self.connect, is_still=is_still)
        except database.StorageError as error:
            raise self._problem(error) from None
        try:
            self._check(reading.rows)
        except (database.JournalError, database.StorageError) as error:
            reading.close()
            raise error if isinstance(error, database.JournalError) else self._problem(error) from None
        return reading

    def _check(self, rows: Callable[..., list[database.StoredRow]]) -> None:
        if not rows("SELECT 1 FROM pg_tables WHERE schemaname = ? AND tablename = 'meta'", (NAMESPACE,)):
            raise database.JournalMissing(
                f"{self.place}: there is no journal: run `cotenant controller migrate`"
            )
        ((version,),) = rows("SELECT value FROM meta WHERE key = 'version'")
        who = rows("SELECT package FROM runs ORDER BY first_seq DESC LIMIT 1")
        database.check_version(int(version), who, self.place)

    def open_writing(self) -> PostgresWriting:
        """Leads from now on, if nobody else does.

        Raises:
            JournalError: another controller leads; there is no journal, or nobody answers.
        """
        reading = self.open_reading()
        found = self.try_to_lead()
        deadline_s = time.monotonic() + FREE_S
        while found is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
            found = self.try_to_lead()
        who = read_leadership(reading)
        reading.close()
        if found is None:
            raise database.JournalError(
                f"another controller leads, at {who.endpoint or 'an unknown endpoint'} on {who.host}: stop "
                "it, or start this one with --standby"
            )
        return found

    def try_to_lead(self, silent_s: float | None = None) -> PostgresWriting | None:
        """Begins a term, if the lock of the leader is free; None: it is not. `silent_s`: the leader has shown
        no sign for so long, and is put out first.

        Raises:
            JournalError: nobody answers.
        """
        try:
            connection = self.connect()
        except _driver().Error as error:
            raise self._problem(error) from None
        try:
            term = self._take(connection, silent_s)
        except _driver().Error as error:
            connection.close()
            raise self._problem(error) from None
        if term is None:
            connection.close()
            return None
        return PostgresWriting(self, connection, term)

    def _take(self, connection: Any, silent_s: float | None) -> int | None:
        if silent_s is not None:
            connection.execute(_in_its_words(_PUT_OUT), (LEADER_LOCK,))
        if not connection.execute("SELECT pg_try_advisory_lock(%s)", (LEADER_LOCK,)).fetchone()[0]:
            return None
        sql = "SELECT term, endpoint, host, since_s, why, leaves FROM leader"
        why = _why(Leadership(*connection.execute(sql).fetchone()), silent_s)
        sql = (
            "UPDATE leader SET term = term + 1, backend = pg_backend_pid(), endpoint = %s, host = %s, "
            "since_s = %s, why = %s, leaves = FALSE RETURNING term"
        )
        row = (self.endpoint, socket.gethostname(), time.time(), why)
        term: int = connection.execute(sql, row).fetchone()[0]
        return term

    def room(self) -> database.Room:
        """The size of the journal's tables as last measured; how full its disk is, PostgreSQL does not
        tell."""
        return database.Room(self.size_bytes, True)

    def maintain(self, sql: str, values: Sequence[object]) -> int:
        """Runs a statement in a transaction of its own, beside a controller that may be writing; returns how
        many rows it changed. Raises StorageError."""
        with _own_errors(lambda: None, None), self.connect() as connection:
            changed: int = connection.execute(_in_its_words(sql), values).rowcount
            return changed

    def free_space(self) -> bool:
        """Makes what deleted rows took free for others, while controllers go on."""
        self.maintain("VACUUM entries", ())
        return True

    # --- Tables ------------------------------------------------------------------------------------

    def migrate(self) -> str:
        """Makes the tables, or takes them along to this version; says what it did.

        Raises:
            JournalError: of a later version, or not allowed.
        """
        try:
            with self.connect() as connection, connection.transaction():
                return self._make_tables(connection)
        except _driver().Error as error:
            raise self._problem(error) from None

    def _make_tables(self, connection: Any) -> str:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LEADER_LOCK + 1,))
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {NAMESPACE}")
        try:
            self._check(lambda sql, row=(): connection.execute(_in_its_words(sql), row).fetchall())
        except database.JournalMissing:
            connection.execute(tables())
            rows = ("name", secrets.token_hex(8), "version", str(database.JOURNAL_VERSION))
            connection.execute("INSERT INTO meta VALUES(%s, %s), (%s, %s)", rows)
            return f"made a journal of version {database.JOURNAL_VERSION}"
        return f"it is of version {database.JOURNAL_VERSION} already: nothing was changed"


def _why(before: Leadership, silent_s: float | None) -> str:
    if before.term == 0:
        return "it was the first to lead"
    who = f"the leader at {before.endpoint}" if before.endpoint else "the leader"
    if before.leaves:
        return f"{who} handed over"
    if silent_s is not None:
        return f"{who} had shown no sign for {silent_s:.0f} s"
    return f"{who} had ended"


def _superseded(found: database.StoredRow | None) -> str:
    by = f" at {found[1]}" if found and found[1] else ""
    why = f" ({found[2]})" if found else ""
    return f"another controller leads now{by}{why}"


def _storable(value: object) -> object:
    """PostgreSQL's texts hold no NUL."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


_WORDS: Final = (
    (r"\bid INTEGER PRIMARY KEY", "id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"),
    (r"\bINTEGER\b", "BIGINT"),
    (r"\bREAL\b", "DOUBLE PRECISION"),
    (r"\bBLOB\b", "BYTEA"),
    (r"\bTEXT\b", 'TEXT COLLATE "C"'),
    (r" WITHOUT ROWID", ""),
)


def tables() -> str:
    """The statements that make a journal's tables, in PostgreSQL's words."""
    sql = SCHEMA
    for pattern, word in _WORDS:
        sql = re.sub(pattern, word, sql)
    return sql + _TABLES
