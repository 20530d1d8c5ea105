"""A controller's journal, followed entry by entry, also while the controller writes to it; and what went
wrong while it was written, and does not in simulations: failures, devices out of work.

Rule: read-only, and it asks no policy: it folds events and recorded decisions as recovery does.

Rule: troubles are counted and reported, never corrected for. A simulation of the same jobs in which nothing
fails promises too much, and a reader of its numbers has to know by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller import store
from cotenant.controller.domain import AnyCommand, Decision, HostState, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, MakePolicy
from cotenant.controller.policies import registry
from cotenant.controller.wire import unpack

LooksAtEntry = Callable[[Engine, ev.AnyEvent, list[AnyCommand]], None]
"""Called with the engine after an entry, its event and its commands."""


class NothingToReplay(Exception):
    """The journal, or the part asked for, has no job that could be simulated; one line."""


def follow(where: Path | str, look: LooksAtEntry) -> Engine:
    """Calls `look` with the engine after every entry of a journal; returns the engine at the end.

    Raises:
        JournalError, NothingToReplay: there is no journal, or it cannot be read; it is empty.
    """
    with open_journal(where) as journal:
        runs, _, _ = extent(journal)
        return fold(journal, runs, look)


def find_journal(where: Path | str) -> store.Database:
    """The journal at an address of PostgreSQL, or the file in a controller's state folder or in the one given
    to `up --state-dir`. Raises JournalError: there is none."""
    if isinstance(where, str):
        return store.open_database(where)
    for path in (where, where / store.JOURNAL_NAME, where / "controller" / store.JOURNAL_NAME):
        try:
            if path.is_file():
                return store.SqliteDatabase(path.parent, path.name)
        except OSError as error:
            raise store.file_error(error) from None
    raise store.JournalMissing(f"{where}: there is no journal ({store.JOURNAL_NAME}) here")


def extent(journal: store.JournalReader) -> tuple[list[store.ControllerRun], float, float]:
    """The starts in a journal, and when the last entry was written: on the journal's clock and on the
    wall's."""
    runs = journal.runs()
    last_seq, now_s, wall_s = journal.last()
    if not runs or not last_seq:
        raise NothingToReplay(f"{journal.place} is empty: no job was ever submitted")
    return runs, now_s, wall_s


@contextmanager
def open_journal(where: Path | str) -> Iterator[store.JournalReader]:
    """Opens a consistent view of a journal, also while it is written to. Raises JournalError: it cannot be
    read, or is damaged."""
    database = find_journal(where)
    reading = database.open_reading(is_still=True)
    try:
        yield store.JournalReader(reading, database.place)
    except store.StorageError as error:
        raise store.damage_error(database.place, str(error)) from None
    finally:
        reading.close()


def entries(
    journal: store.JournalReader,
    runs: list[store.ControllerRun],
    engine: Engine,
    make_policy: MakePolicy,
    *,
    after: int = 0,
    limit: int | None = None,
) -> Iterator[tuple[Engine, store.Entry, ev.AnyEvent, Decision]]:
    """Yields the entries of a journal in order, each with the engine that the caller is to hand it to: in the
    configuration of its time."""
    upcoming = [run for run in runs[1:] if run.first_seq > after]
    for entry in journal.entries(after, limit):
        while upcoming and upcoming[0].first_seq <= entry.seq:
            engine = reconfigure(engine, upcoming.pop(0).configuration, make_policy)
        yield engine, entry, *store.read_entry(journal, entry)


def fold(journal: store.JournalReader, runs: list[store.ControllerRun], look: LooksAtEntry) -> Engine:
    """Every entry in order, as recovery folds it; the engine at the end."""
    current = Engine(registry.make, unpack(runs[0].configuration, EngineConfig))
    for engine, entry, event, decision in entries(journal, runs, current, registry.make):
        look(engine, event, engine.fold(event, decision, entry.now_s))
        current = engine
    return current


def reconfigure(engine: Engine, configuration: bytes, make_policy: MakePolicy) -> Engine:
    """Returns the state of `engine` in an engine of another configuration."""
    moved = Engine(make_policy, unpack(configuration, EngineConfig))
    # As recovery does it: encoded, since the new engine must not share values with the old one.
    image = msgspec.msgpack.encode(engine.snapshot())
    moved.restore(msgspec.msgpack.decode(image, type=type(engine.snapshot())))
    return moved


WORTH_A_WORD: Final = 0.005
"""Shares of the devices' time below this are not reported."""
_ABOUT_HOSTS: Final = (
    ev.HostJoined,
    ev.HostSilent,
    ev.HostBack,
    ev.HostLost,
    ev.HostDrained,
    ev.HostResumed,
)


class Troubles:
    """Observes the engine after every event of the part asked for."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s
        self._failed: set[tuple[JobId, int]] = set()
        self._since_s: float | None = None
        """When the number of devices that take work was looked at last."""
        self._usable = 0
        self._first_s = begin_s
        self._usable_s = 0.0
        """Devices times seconds in which they took work."""

    def observe(self, engine: Engine, event: ev.AnyEvent) -> None:
        failed = isinstance(event, ev.AttemptEnded) and event.verdict.outcome == "infra-failed"
        if isinstance(event, ev.AttemptEnded) and failed and engine.now_s >= self._begin_s:
            self._failed.add((event.job_id, event.attempt))
        # A host becomes suspect with a failure, and is itself again with a first step.
        if failed or isinstance(event, (*_ABOUT_HOSTS, ev.FirstStepDone)):
            self._count(engine.now_s)
            self._usable = usable(engine)

    def note_loss(self, engine: Engine, job_id: JobId) -> None:
        """A job's attempt was lost with its host."""
        job = engine.jobs.get(job_id)
        if job is not None and engine.now_s >= self._begin_s:
            self._failed.add((job_id, job.attempt.number))

    def notes(self, devices: int, end_s: float) -> list[str]:
        """Reports the troubles as lines of text. `devices`: as many as are simulated."""
        self._count(end_s)
        found = []
        if self._failed:
            jobs = len({job_id for job_id, _ in self._failed})
            found.append(
                f"{len(self._failed):,} attempt{'s' * (len(self._failed) != 1)} of {jobs:,} "
                f"job{'s' * (jobs != 1)} failed by the infrastructure: what was lost, tried again and waited "
                "out is in what happened alone; in the simulations nothing fails"
            )
        all_s = devices * (end_s - self._first_s)
        missing = 1.0 - self._usable_s / all_s if all_s > 0.0 else 0.0
        if missing > WORTH_A_WORD:
            found.append(
                f"{100 * missing:.0f} % of the devices' time they took no work (not there, silent, drained, "
                "suspect or unhealthy); in the simulations all are there from the beginning to the end"
            )
        return found

    def _count(self, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = self._first_s = max(self._begin_s, now_s)
        elif now_s > self._since_s:
            self._usable_s += self._usable * (now_s - self._since_s)
            self._since_s = now_s


def usable(engine: Engine) -> int:
    """Devices that would get new work."""
    return sum(
        device.healthy
        for host in engine.hosts.values()
        if host.state is HostState.OK and not host.lost
        for device in host.report.devices
    )
