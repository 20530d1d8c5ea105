"""Write `journal-N.sql`: a small journal of the present version, for later versions to read.

    python -m tests.compat.make_journal
    python -m tests.compat.make_journal past-job    # `past-job-1.bin`: a job that only the journal knows

Run it once per journal version, before that version is released, and never again: the file is the promise.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

from cotenant.controller.domain import JobId
from cotenant.controller.store import JOURNAL_VERSION
from cotenant.controller.wire import clients
from tests.controller.station import Station, job, run_one


def live(station: Station) -> None:
    """Four jobs on one device: finished, running, queued, cancelled; a policy change in between."""
    address = station.join("h1", devices=1)
    station.ask(clients.Submit(specs=(job("first"),), idempotency_key="compat"))
    for name in ("second", "third", "fourth"):
        station.submit(name=name, memory_mib=4_000, expected_s=100.0)
    run_one(station, address, JobId("1"))
    station.ask(clients.SetPolicy(name="sjf"))
    station.core.snapshot()
    station.time_s += 5.0
    run_one(station, address, JobId("2"), until="step")
    station.ask(clients.ChangeJobs(verb="cancel", job_ids=(JobId("4"),)))


def past_job() -> None:
    with tempfile.TemporaryDirectory() as name:
        station = Station(Path(name), keep_ended=0)
        live(station)
        station.close()
        database = sqlite3.connect(Path(name) / "journal.sqlite")
        ((data,),) = database.execute("SELECT data FROM past_jobs WHERE job = '1'")
        database.close()
    Path(__file__).with_name("past-job-1.bin").write_bytes(data)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        station = Station(Path(name))
        live(station)
        station.close()
        database = sqlite3.connect(Path(name) / "journal.sqlite")
        database.execute("UPDATE meta SET value = 'c0ffee00c0ffee00' WHERE key = 'name'")
        database.execute("UPDATE runs SET pid = 1")
        lines = [*database.iterdump(), f"PRAGMA user_version={JOURNAL_VERSION};"]
        database.close()
    target = Path(__file__).with_name(f"journal-{JOURNAL_VERSION}.sql")
    target.write_text("\n".join(lines) + "\n")
    print(f"wrote {target}")


if __name__ == "__main__":
    past_job() if sys.argv[1:] == ["past-job"] else main()
