"""What runs is journalled after others have filled the disk, as "nearly full" promises."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.controller.domain import Phase
from cotenant.controller.store import DISK_BYTES_MIN, JOURNAL_NAME, RESERVE_BYTES, Journal, StorageError
from cotenant.controller.wire import clients
from tests.building.journals import a_journal, writing_of
from tests.controller.station import ALICE, Station, job, run_one

ENTRY_BYTES = 2_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 80 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(where)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(disk: Path) -> None:
    """Somebody else takes all that is left."""
    with open(disk / "others", "wb", buffering=0) as file:
        for size in (1024 * 1024, 4096):
            while True:
                try:
                    file.write(bytes(size))
                except OSError:
                    break
    space = os.statvfs(disk)
    assert space.f_bavail * space.f_frsize < 4096


@pytest.mark.root
def test_the_end_of_a_running_job_is_journalled_on_a_full_disk(disk: Path) -> None:
    station = Station(disk / "state", disk_bytes_min=DISK_BYTES_MIN)
    address = station.join("h1")
    running = station.submit()
    run_one(station, address, running, until="step")
    fill(disk)
    refused = station.ask(clients.Submit(specs=(job(),)), ALICE)
    assert "nearly full" in refused.message
    run_one(station, address, running)
    assert station.core.stuck == "" and station.core.state.engine.jobs[running].phase is Phase.DONE
    last = station.journal.last_seq
    reader = sqlite3.connect(f"file:{disk}/state/{JOURNAL_NAME}?mode=ro", uri=True)
    assert reader.execute("SELECT max(seq) FROM entries").fetchone()[0] == last, "all of it is on the disk"
    reader.close()
    station.close()
    station = Station(disk / "state", disk_bytes_min=DISK_BYTES_MIN)
    assert station.core.state.engine.jobs[running].phase is Phase.DONE
    station.close()


@pytest.mark.root
def test_the_reserve_holds_thousands_of_entries(disk: Path) -> None:
    failures: list[StorageError] = []
    journal = Journal(disk / "state", on_failure=failures.append)
    journal.flush()
    fill(disk)
    for at in range(RESERVE_BYTES // ENTRY_BYTES // 2):
        journal.append(float(at), 0.0, os.urandom(ENTRY_BYTES), b"", b"")
        journal.seal()
        if at % 50 == 49:
            journal.flush()
    journal.flush()
    assert not failures
    journal.close()


def free_bytes(journal: Journal) -> int:
    journal.flush()
    return writing_of(journal)._reserve.free_bytes()


def test_what_was_used_of_the_reserve_is_replaced_while_there_is_room(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert free_bytes(journal) >= RESERVE_BYTES
    log = (tmp_path / f"{JOURNAL_NAME}-wal").stat().st_size
    assert log >= RESERVE_BYTES, "what is on its way needs room as well"
    for at in range(30):
        journal.append(float(at), 0.0, os.urandom(500_000), b"", b"")
        journal.seal()
        assert free_bytes(journal) >= RESERVE_BYTES
    assert [entry.seq for entry in journal.entries()] == list(range(1, 31))
    journal.close()


def test_nothing_is_set_aside_where_that_would_fill_the_disk(
    tmp_path: Path,
) -> None:
    journal = a_journal(tmp_path)
    assert free_bytes(journal) < RESERVE_BYTES
    journal.close()
