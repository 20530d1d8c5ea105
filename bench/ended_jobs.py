"""How long a restart takes and how much memory the controller holds with a million ended jobs in the past.

    python bench/ended_jobs.py [--jobs 10000 100000 1000000] [--lived 100000] [--write PAGE.md]

One journal grows: the real core decides about every job (arrival, start, first step, end), with a clock of
its own, and writes what it writes of a live one. Beyond `--lived` jobs the rows of the past are copied, with
other numbers, and the newest thousands are lived again. At each number of jobs a controller, a process of its
own, is started on it twice: after an orderly end, and after one without a last snapshot.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any, Final

import machine
from control_plane import rss_of
from journal import end, launch
from journal_growth import report

from cotenant.controller.domain import (
    AnyCommand,
    ExitVerdict,
    HostId,
    JobId,
    JobSpec,
    Launch,
    StartAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, Ledger
from cotenant.controller.policies import registry
from cotenant.controller.store import Clock, Core, Journal, RecoveredState, let_follow

HOSTS: Final = 4
USERS: Final = 50
KINDS: Final = 5_000
TASKS: Final = 100
"""Of every array; one job in four is a task."""
EVERY_S: Final = 30.0
RELIVED: Final = 5_000
"""The newest jobs, which are lived in every case: with some more than these a snapshot is due."""
COPIES: Final = (
    ("entries", "seq", "seq + ?1, now_s, wall_s, event, decision, commands, crc"),
    ("past_jobs", "number", "number + ?1, 'c' || ?1 || array, 'c' || ?1 || job, phase, data"),
    ("submissions", "seq", "user, 'c' || ?1 || key, job_ids, seq + ?1"),
)
"""Table, its number, a copy of a row."""
FLUSHED_EVERY: Final = 1_000
"""Jobs; all rows between are committed together."""


class Past:
    """A controller without peers whose jobs begin and end at once."""

    def __init__(self, folder: Path, now_s: float) -> None:
        self.now_s = now_s
        self._folder = folder
        self._chance = random.Random(7)
        self._journal = Journal(folder, hand_over=lambda effects: let_follow(effects, lambda decided: None))
        self.core = Core(
            self._journal,
            registry.make,
            EngineConfig(),
            package="bench",
            wall_s=now_s,
            clock=lambda start_s: Clock(start_s, monotonic=lambda: self.now_s, wall=lambda: self.now_s),
        )
        self.now_s = self.core.clock.now_s()
        for at in range(HOSTS):
            self._happen(ev.HostJoined(report=report(HostId(f"host{at:04d}"))))

    def live_until(self, count: int) -> None:
        """Until so many jobs have arrived."""
        while (number := self.core.state.engine.ledger.next_number) <= count:
            self.now_s += EVERY_S
            job_id = JobId(str(number))
            if number % (4 * TASKS) < TASKS:
                first = number - number % (4 * TASKS)
                job_id = JobId(f"{max(1, first)}_{number - first}")
            self._live(job(job_id, self._chance), number)
            if number % FLUSHED_EVERY == 0:
                self._journal.flush()

    def copy_until(self, count: int) -> None:
        """Makes so many jobs of the past by copies of its rows, as if all had lived; ends the core."""
        self.close(orderly=True)
        lived = self.core.state.engine.ledger.next_number - 1
        times, last = count // lived - 1, self._journal.last_seq
        database = sqlite3.connect(self._folder / "journal.sqlite", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        for at in range(1, times + 1):
            database.execute("BEGIN")
            for table, number, row in COPIES:
                size = lived if table == "past_jobs" else last
                copied = f"INSERT INTO {table} SELECT {row} FROM {table} WHERE {number} <= ?2"
                database.execute(copied, (at * size, size))
            database.execute("COMMIT")
        ((data,),) = database.execute("SELECT data FROM snapshots ORDER BY seq DESC LIMIT 1").fetchall()
        state = RecoveredState(Engine(registry.make, EngineConfig()))
        state.load(data)
        ledger = state.engine.ledger
        assert isinstance(ledger, Ledger)
        ledger.next_number = (times + 1) * lived + 1
        data = state.save()
        database.execute("DELETE FROM snapshots")
        snapshot = ((times + 1) * last, data, zlib.crc32(data))
        database.execute("INSERT INTO snapshots VALUES(?, ?, ?)", snapshot)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()

    def _live(self, spec: JobSpec, number: int) -> None:
        commands = self._happen(ev.JobArrived(spec=spec))
        self._journal.keep_submission(spec.user, f"{number:032x}", (spec.job_id,))
        for start in [each for each in commands if isinstance(each, StartAttempt)]:
            named: dict[str, Any] = {
                "job_id": start.job_id, "attempt": start.attempt, "host_id": start.host_id,
            }  # fmt: skip
            self._happen(ev.AttemptStarted(**named))
            self.now_s += 10.0
            self._happen(ev.FirstStepDone(**named, step=1))
            self.now_s += self._chance.uniform(10.0, 1_000.0)
            failed = self._chance.random() < 0.1
            verdict = ExitVerdict(outcome="user-failed" if failed else "finished", exit_code=int(failed))
            self._happen(ev.AttemptEnded(**named, verdict=verdict, step=1_000))
            self._journal.keep_report(start.host_id, number)

    def _happen(self, event: ev.AnyEvent) -> list[AnyCommand]:
        commands = self.core.happen(event)
        let_follow(self.core.seal(), lambda decided: None)
        while self.core.ring():
            self.core.happen(ev.AlarmRang())
            let_follow(self.core.seal(), lambda decided: None)
        return commands

    def close(self, *, orderly: bool) -> None:
        if orderly:
            self.core.snapshot()
            let_follow(self.core.seal(), lambda decided: None)
        self._journal.close()


def job(job_id: JobId, chance: random.Random) -> JobSpec:
    env = {f"VARIABLE_{number}": "value" * 5 for number in range(10)}
    argv = ("python", "train.py", "--layers", str(chance.randrange(KINDS)))
    launch = Launch(argv=argv, workdir="/home/somebody/project", env=env)
    return JobSpec(job_id=job_id, name="train", user=f"user{chance.randrange(USERS)}", launch=launch)


def measure(folder: Path, state: Path) -> tuple[float, float, float]:
    """Seconds of recovery, seconds until it is ready, MiB when it is."""
    began_s = time.monotonic()
    process, words = launch(state, folder)
    ready_s = time.monotonic() - began_s
    rss_mib = rss_of(process.pid)
    end(process, kill=True)
    return float(dict(word.split("=") for word in words[2:])["recovered_s"]), ready_s, rss_mib


def rows(folder: Path, counts: list[int], lived_max: int) -> list[str]:
    state, found = folder / "state", []
    now_s = time.time() - 2.0 * min(counts[-1], lived_max) * (EVERY_S + 520.0)
    for count in counts:
        columns = []
        if count > lived_max:
            past = Past(state, now_s)
            past.copy_until(count - RELIVED)
            now_s = past.now_s
        for orderly in (False, True):
            past = Past(state, now_s)
            past.live_until(count if orderly else count - 100)
            past.close(orderly=orderly)
            now_s = past.now_s
            columns.append(measure(folder, state))
        size_mib = (state / "journal.sqlite").stat().st_size / 2**20
        (killed, orderly_) = columns
        found.append(
            f"| {count:,} | {size_mib:,.0f} | {orderly_[0]:.2f} | {orderly_[1]:.2f} | {killed[0]:.2f} "
            f"| {killed[1]:.2f} | {max(orderly_[2], killed[2]):.0f} |"
        )
        print(found[-1], flush=True)
    return found


PAGE = """# Restarts with a long past

{head}

| ended jobs | journal, MiB | recovered, s | ready, s | after a kill: recovered, s | ready, s | RSS, MiB |
| --- | --- | --- | --- | --- | --- | --- |
{rows}

The journal holds every event of these jobs: arrival, start, first step, end. *recovered*: reading the state
back, from the snapshot of an orderly end, or after a kill from the newest snapshot and the entries after it;
*ready*: from the start of the process until it answers. *RSS*: when it is ready, the larger of the two. It
lists the newest {keep:,} ended jobs (`controller.keep_ended`). Beyond {lived:,} jobs the older rows are
copies.

Command: `python bench/ended_jobs.py --jobs {jobs} --lived {lived}`
{machine} {note}
"""


def page_of(found: list[str], options: Any) -> str:
    last = [field.strip() for field in found[-1].strip("| ").split("|")]
    head = (
        f"With {last[0]} ended jobs a restart is ready in {max(float(last[3]), float(last[5])):.1f} s, "
        f"with {last[6]} MiB."
    )
    return PAGE.format(
        head=head,
        rows="\n".join(found),
        keep=EngineConfig().keep_ended,
        jobs=" ".join(map(str, options.jobs)),
        lived=options.lived,
        machine=machine.sentences(sqlite=sqlite3.sqlite_version),
        note=options.note,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--lived", type=int, default=100_000, help="at most so many; copies beyond")
    parser.add_argument("--write", type=Path, default=None, help="a page for experiments/results")
    parser.add_argument("--note", default="", help="a line about the circumstances, for the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as name:
        found = rows(Path(name), options.jobs, options.lived)
    page = page_of(found, options)
    print(page)
    if options.write:
        options.write.write_text(page)


if __name__ == "__main__":
    main()
