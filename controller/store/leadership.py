"""Who leads and who follows, as the tables beside a shared journal say."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from cotenant.controller.store.database import ReadingConnection

LEADER_LOCK: Final = 0x636F_7465_6E61_6E74
"""The advisory lock that a leader holds."""
HOLDERS: Final = (
    "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted "
    "AND (classid::bigint << 32 | objid::bigint) = ? "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
"""Connections that hold it."""


class Leadership(NamedTuple):
    """Who leads, as the database knows it."""

    term: int
    endpoint: str
    host: str
    since_s: float
    """By the leader's wall clock."""
    why: str
    """Why it took over."""
    leaves: bool
    """It is about to hand over."""


class FollowingStandby(NamedTuple):
    """A standby, as the database knows it."""

    endpoint: str
    host: str
    seq: int
    """The last entry that it has taken in."""
    seen_s: float
    """How long ago it said so, in seconds."""


def read_leadership(reading: ReadingConnection) -> Leadership:
    """Asks who leads. Raises StorageError."""
    return Leadership(*reading.rows("SELECT term, endpoint, host, since_s, why, leaves FROM leader")[0])


def has_leader(reading: ReadingConnection) -> bool:
    """Asks whether anybody holds the lock of the leader. Raises StorageError."""
    count: int = reading.rows(f"SELECT count(*) {HOLDERS}", (LEADER_LOCK,))[0][0]
    return count > 0


def read_beat(reading: ReadingConnection) -> tuple[int, int]:
    """Asks for the leader's term and its last sign of life. Raises StorageError."""
    term, count = reading.rows("SELECT term, beat FROM leader, beats")[0]
    return term, count


def read_following(reading: ReadingConnection) -> list[FollowingStandby]:
    """Asks who has followed within the last minute. Raises StorageError."""
    sql = (
        "SELECT endpoint, host, seq, extract(epoch FROM clock_timestamp() - seen)::float FROM standbys "
        "WHERE seen > clock_timestamp() - interval '1 minute' ORDER BY endpoint"
    )
    return [FollowingStandby(*row) for row in reading.rows(sql)]


def note_following(reading: ReadingConnection, endpoint: str, seq: int) -> None:
    """Says that the standby at `endpoint` has taken in all entries up to `seq`. Raises StorageError."""
    sql = (
        "INSERT INTO standbys VALUES(?, ?, ?, clock_timestamp()) ON CONFLICT(endpoint) DO UPDATE "
        "SET host = excluded.host, seq = excluded.seq, seen = excluded.seen RETURNING seq"
    )
    reading.rows(sql, (endpoint, socket.gethostname(), seq))


def forget_following(reading: ReadingConnection, endpoint: str) -> None:
    """Says that the standby at `endpoint` follows no more. Raises StorageError."""
    reading.rows("DELETE FROM standbys WHERE endpoint = ? RETURNING seq", (endpoint,))
