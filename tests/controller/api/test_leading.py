"""What the leader knows of who follows, without making anybody wait for the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from cotenant.controller.api import LeadershipWatch, leading
from cotenant.controller.store import JournalReader, PostgresDatabase, StorageError
from cotenant.controller.store.leadership import note_following
from tests.building.limits import within_s


def wait_for(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + within_s(20.0)
    while not happened():
        assert time.monotonic() < deadline_s


def test_it_reads_who_follows_and_keeps_what_it_knew_while_the_database_is_lost(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "LOOK_S", 0.01)
    database = PostgresDatabase(postgres_url, endpoint="tcp://a:1")
    database.migrate()
    writing = database.try_to_lead()
    assert writing is not None
    with closing(writing), closing(JournalReader(database.open_reading(), database.place)) as journal:
        core: Any = SimpleNamespace(
            journal=SimpleNamespace(database=database, reading=journal.reading),
            durable_seq=7,
            clock=SimpleNamespace(wall=time.time),
        )
        watch = LeadershipWatch(core)
        assert watch.news is not None and watch.news.leader.endpoint == "tcp://a:1"
        assert watch.news.leader.term == 1 and watch.news.standbys() == ()
        watch.start()
        note_following(journal.reading, "tcp://b:1", 5)
        wait_for(lambda: bool(watch.news and watch.news.following))
        (standby,) = watch.news.standbys()
        assert (standby.endpoint, standby.behind_entries, standby.is_near) == ("tcp://b:1", 2, True)
        failures = []

        def fail(reading: Any) -> Any:
            failures.append(1)
            raise StorageError("lost")

        monkeypatch.setattr(leading, "read_following", fail)
        wait_for(lambda: len(failures) > 1)
        assert watch.is_alive() and watch.news.following
        watch.close()
