"""What the leader knows of who follows, without making anybody wait for the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

from cotenant.controller.api import LeadershipWatch
from cotenant.controller.store import JournalReader, PostgresDatabase, StorageError, note_following
from tests.building.limits import within_s


def wait_for(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + within_s(20.0)
    while not happened():
        assert time.monotonic() < deadline_s


class LosesReadings:
    """A database whose readings fail once it is lost."""

    def __init__(self, inner: PostgresDatabase) -> None:
        self._inner = inner
        self.place, self.is_shared = inner.place, True
        self.is_lost = False
        self.failures = 0

    def open_reading(self) -> LosesReadings:
        self._reading = self._inner.open_reading()
        return self

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if self.is_lost:
            self.failures += 1
            raise StorageError("lost")
        return self._reading.rows(sql, values)

    def close(self) -> None:
        self._reading.close()


def test_it_reads_who_follows_and_keeps_what_it_knew_while_the_database_is_lost(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url, endpoint="tcp://a:1")
    database.migrate()
    writing = database.try_to_lead()
    assert writing is not None
    lossy = LosesReadings(database)
    with closing(writing), closing(JournalReader(database.open_reading(), database.place)) as journal:
        core: Any = SimpleNamespace(
            journal=SimpleNamespace(database=lossy, reading=journal.reading),
            durable_seq=7,
            clock=SimpleNamespace(wall=time.time),
        )
        watch = LeadershipWatch(core, look_s=0.01)
        assert watch.news is not None and watch.news.leader.endpoint == "tcp://a:1"
        assert watch.news.leader.term == 1 and watch.news.standbys() == ()
        watch.start()
        note_following(journal.reading, "tcp://b:1", 5)
        wait_for(lambda: bool(watch.news and watch.news.following))
        (standby,) = watch.news.standbys()
        assert (standby.endpoint, standby.behind_entries, standby.is_near) == ("tcp://b:1", 2, True)
        lossy.is_lost = True
        wait_for(lambda: lossy.failures > 1)
        assert watch.is_alive() and watch.news.following
        watch.close()
