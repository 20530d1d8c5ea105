"""A journal is copied whole, in either direction, goes on where it was cut off, and is checked on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cotenant.controller import store
from cotenant.controller.engine import EngineConfig
from cotenant.controller.policies import registry
from cotenant.controller.store.copying import copy_journal
from cotenant.controller.store.schema import TABLES
from cotenant.controller.wire import clients
from tests.building.kept_journals import Kept, KeptInFile, KeptInPostgres
from tests.building.postgres import Postgres
from tests.controller.station import ALICE, Station, job, run_one


@pytest.fixture(params=["to PostgreSQL", "back to a file"])
def ways(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[tuple[Kept, Kept]]:
    """A source and a target."""
    with ExitStack() as stack:
        file = KeptInFile(tmp_path / "file")
        shared = KeptInPostgres(postgres.url(stack.enter_context(postgres.database())))
        yield (file, shared) if request.param == "to PostgreSQL" else (shared, file)


@pytest.fixture
def source(ways: tuple[Kept, Kept], tmp_path: Path) -> Kept:
    """A journal with something in every table."""
    station = Station(tmp_path / "file", database=ways[0].database(), keep_ended=1)
    address = station.join("h1")
    for _ in range(4):
        run_one(station, address, station.submit())
    station.ask(clients.Submit(specs=(job(),), idempotency_key="k-1"), ALICE)
    station.journal.keep_quarantined(1.0, b"event", "story")
    station.journal.keep_notice("7-end", "still to be told")
    station.core.snapshot()
    station.close()
    return ways[0]


@pytest.fixture
def target(ways: tuple[Kept, Kept]) -> Kept:
    return ways[1]


def contents(database: store.Database) -> dict[str, object]:
    """All that a journal says, and the state to which it leads."""
    with closing(database.open_reading()) as reading:
        journal = store.JournalReader(reading, database.place)
        state = store.recover(journal, registry.make, EngineConfig(keep_ended=1))
        found: dict[str, object] = {
            table.name: reading.rows(f"SELECT {table.columns} FROM {table.name} ORDER BY {table.key}")
            for table in TABLES
        }
        return {**found, "name": journal.name, "state": state.save(), "notices": journal.notices()}


def tell_nobody(table: str, done: int, total: int) -> None: ...


def test_all_of_it_arrives(source: Kept, target: Kept) -> None:
    before = contents(source.database())
    assert all(before[table.name] for table in TABLES), "something of every kind is there to be lost"
    assert before["notices"] == ["still to be told"]
    copy_journal(source.database(), target.database(), tell_nobody)
    assert contents(target.database()) == before
    store.Journal(target.database()).close()


@pytest.mark.parametrize("cut_at", [1, 2, 4, 8])
def test_it_goes_on_where_it_was_cut_off(source: Kept, target: Kept, cut_at: int) -> None:
    portions = 0

    def pull_the_plug(table: str, done: int, total: int) -> None:
        nonlocal portions
        portions += 1
        if portions == cut_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_journal(source.database(), target.database(), pull_the_plug, portion=2)
    with pytest.raises(store.JournalError, match="finish with `cotenant controller copy`"):
        store.Journal(target.database())
    arrived = 0

    def count(table: str, done: int, total: int) -> None:
        nonlocal arrived
        arrived += 1

    before = contents(source.database())
    copy_journal(source.database(), target.database(), count)
    assert contents(target.database()) == before
    assert cut_at == 1 or arrived > 0


def test_a_damaged_entry_is_named_and_the_copy_is_not_used(source: Kept, target: Kept) -> None:
    source.alter("UPDATE entries SET event = x'00' WHERE seq = 3")
    with pytest.raises(store.JournalDamaged, match="entry 3 was changed on disk"):
        copy_journal(source.database(), target.database(), tell_nobody)
    with pytest.raises(store.JournalError, match="finish with"):
        store.Journal(target.database())


def test_nothing_is_copied_over_another_journal(source: Kept, target: Kept, tmp_path: Path) -> None:
    station = Station(tmp_path / "other", database=target.database())
    station.submit()
    station.close()
    before = contents(target.database())
    with pytest.raises(store.JournalError, match="holds a journal already: name an empty place"):
        copy_journal(source.database(), target.database(), tell_nobody)
    assert contents(target.database()) == before


def test_nothing_is_copied_from_under_a_controller(source: Kept, target: Kept) -> None:
    journal = store.Journal(source.database())
    with pytest.raises(store.JournalError, match="another controller"):
        copy_journal(source.database(), target.database(), tell_nobody)
    journal.close()
