"""A controller's journal, followed entry by entry; also while the controller writes to it.

Rule: read-only, and it asks no policy: it folds events and recorded decisions as recovery does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import AnyCommand, Decision
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, MakePolicy
from cotenant.controller.policies import registry
from cotenant.controller.store import (
    JOURNAL_NAME,
    JournalError,
    JournalMissing,
    check_version,
    checksum,
    damaged,
)
from cotenant.controller.wire import BadMessage, unpack

_RUNS: Final = "SELECT first_seq, configuration FROM runs ORDER BY rowid"
_ENTRIES: Final = (
    "SELECT seq, now_s, event, decision, commands, crc FROM entries WHERE seq > ? ORDER BY seq LIMIT ?"
)

Look = Callable[[Engine, ev.AnyEvent, list[AnyCommand]], None]
"""Called with the engine after an entry, its event and its commands."""


class NothingToReplay(Exception):
    """The journal, or the part asked for, has no job that could be simulated; one line."""


class Start(NamedTuple):
    """One start of the controller: from which entry on, under which configuration."""

    first_seq: int
    configuration: bytes


def follow(where: Path, look: Look) -> Engine:
    """Calls `look` with the engine after every entry of a journal; returns the engine at the end.

    Raises:
        JournalError, NothingToReplay: there is no journal, or it cannot be read; it is empty.
    """
    path = find_journal(where)
    with opened(path) as database:
        runs, _, _ = extent(database, path)
        return fold(database, path, runs, look)


def find_journal(where: Path) -> Path:
    """The journal's file, in a controller's state folder or in the one given to `up --state-dir`."""
    for path in (where, where / JOURNAL_NAME, where / "controller" / JOURNAL_NAME):
        if path.is_file():
            return path
    raise JournalMissing(f"{where}: there is no journal ({JOURNAL_NAME}) here")


def extent(database: sqlite3.Connection, path: Path) -> tuple[list[Start], float, float]:
    """Its starts, and when the last entry was written: on the journal's clock and on the wall's."""
    runs = [Start(*row) for row in database.execute(_RUNS)]
    last = database.execute("SELECT now_s, wall_s FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    if not runs or last is None:
        raise NothingToReplay(f"{path} is empty: no job was ever submitted")
    return runs, last[0], last[1]


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Raises JournalError: it cannot be read, or is damaged."""
    database = _open(path)
    try:
        yield database
    except sqlite3.Error as error:
        raise damaged(path, str(error)) from None
    finally:
        database.close()


def _open(path: Path) -> sqlite3.Connection:
    """A consistent view of the journal, also while it is written to."""
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        database.execute("BEGIN")
        if database.execute("PRAGMA user_version").fetchone()[0] == 0:
            raise JournalError(f"{path} is no journal of cotenant")
        check_version(database, path)
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be read: {error}") from None
    return database


class PastEntry(NamedTuple):
    """One entry, read."""

    seq: int
    now_s: float
    event: ev.AnyEvent
    decision: Decision
    commands: bytes
    """Their digest."""


def entries(
    database: sqlite3.Connection, path: Path, *, after: int = 0, limit: int = -1
) -> Iterator[PastEntry]:
    """In order; `limit` below 0: all."""
    for seq, now_s, event, decision, commands, crc in database.execute(_ENTRIES, (after, limit)):
        if crc != checksum(now_s, event, decision, commands):
            raise damaged(path, f"entry {seq} was changed on disk: its checksum is wrong")
        try:
            yield PastEntry(seq, now_s, unpack(event, ev.AnyEvent), unpack(decision, Decision), commands)
        except BadMessage as error:
            raise damaged(path, f"entry {seq} cannot be read ({error})") from None


def fold(database: sqlite3.Connection, path: Path, runs: list[Start], look: Look) -> Engine:
    """Every entry in order, as recovery folds it; the engine at the end."""
    engine, upcoming = Engine(registry.make, unpack(runs[0].configuration, EngineConfig)), runs[1:]
    for entry in entries(database, path):
        while upcoming and upcoming[0].first_seq <= entry.seq:
            engine = under(engine, upcoming.pop(0).configuration, registry.make)
        look(engine, entry.event, engine.fold(entry.event, entry.decision, entry.now_s))
    return engine


def under(engine: Engine, configuration: bytes, make_policy: MakePolicy) -> Engine:
    """The same state in an engine of another configuration."""
    moved = Engine(make_policy, unpack(configuration, EngineConfig))
    # As recovery does it: encoded, since the new engine must not share values with the old one.
    image = msgspec.msgpack.encode(engine.snapshot())
    moved.restore(msgspec.msgpack.decode(image, type=type(engine.snapshot())))
    return moved
