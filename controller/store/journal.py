"""The journal: every event, the decision it led to, and all that was promised to anyone.

Rule: an event and its decision are one row of one transaction, and nothing that follows from them (an
acknowledgement, a command, an answer) leaves the controller before that transaction is durable. So a crash
loses nothing that anybody has seen, and recovery never has to ask a policy again. A writer thread commits;
all that wait at that moment share the commit. Recovery, replay and history read the same rows. One controller
writes to it.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.domain import HostId, Job, JobId, array_of
from cotenant.controller.store import archive, database
from cotenant.controller.store.clock import UNKNOWN, Uptime
from cotenant.controller.store.committing import CommitGroup, Effect, Writer, let_follow
from cotenant.controller.store.schema import COPYING, NOTICE, PUT_META
from cotenant.controller.store.sqlite import SqliteDatabase

SNAPSHOTS_KEPT: Final = 2
READ_ROWS: Final = 2_000
"""Entries that are read at a time."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the journal and what was decided about it."""

    seq: int
    now_s: float
    wall_s: float
    event: bytes
    decision: bytes
    commands: bytes
    """Digest of the commands that followed, for replay."""


class ControllerRun(msgspec.Struct, frozen=True, kw_only=True):
    """A start of a controller: from which entry on which configuration was in force."""

    first_seq: int
    package: str
    configuration: bytes
    now_s: float
    wall_s: float


def place_of(text: str) -> Path | str:
    """Where a journal is kept, as a person has named it: a folder of this machine, or an address of
    PostgreSQL."""
    return text if text.startswith(("postgresql://", "postgres://")) else Path(text).expanduser()


def open_database(where: Path | str, *, endpoint: str = "") -> database.Database:
    """The database at `postgresql://...`, or the file in a folder of this machine. `endpoint`: where the
    controller that opens it is asked.

    Raises:
        JournalError: this installation has nothing for PostgreSQL, or the address holds a password.
    """
    if isinstance(where, Path):
        return SqliteDatabase(where)
    from cotenant.controller.store.postgres import PostgresDatabase

    return PostgresDatabase(where, endpoint=endpoint)


class JournalReader:
    """What a journal holds, read through one connection. A controller may be writing to it."""

    def __init__(self, reading: database.ReadingConnection, place: str) -> None:
        self.reading = reading
        self.place = place
        self.name: str = self.meta("name")
        """Random, made with the journal: job and command numbers mean something only within one."""

    def close(self) -> None:
        """Closes the connection."""
        self.reading.close()

    def meta(self, key: str) -> str:
        """One of the few things that there is one of; empty: not there."""
        found = self.reading.rows("SELECT value FROM meta WHERE key = ?", (key,))
        return found[0][0] if found else ""

    def began_s(self, wall_s: float) -> float:
        """When its time was 0, by the wall clock of the first start; before the first start: now."""
        runs = self.runs()
        return runs[0].wall_s - runs[0].now_s if runs else wall_s

    def runs(self) -> list[ControllerRun]:
        """The starts of controllers, in order."""
        sql = "SELECT first_seq, package, configuration, now_s, wall_s FROM runs ORDER BY first_seq, now_s"
        return [
            ControllerRun(first_seq=r[0], package=r[1], configuration=r[2], now_s=r[3], wall_s=r[4])
            for r in self.reading.rows(sql)
        ]

    def last(self) -> tuple[int, float, float]:
        """The number of the newest entry, and when it was written: on the journal's clock and on the wall's.
        Zeros: there is none."""
        found = self.reading.rows("SELECT seq, now_s, wall_s FROM entries ORDER BY seq DESC LIMIT 1")
        return found[0] if found else (0, 0.0, 0.0)

    def first_at(self, now_s: float) -> int:
        """The number of the first entry that was written at this time of its clock or later; 0: none was."""
        sql = "SELECT coalesce(min(seq), 0) FROM entries WHERE now_s >= ?"
        first: int = self.reading.rows(sql, (now_s,))[0][0]
        return first

    def entries(self, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Durable entries in order, also those that lie in archives; at most `limit`.

        Raises:
            JournalDamaged: one is missing or was changed; the text names it.
            StorageLost: the database cannot be reached.
        """
        for seq, now_s, wall_s, event, decision, commands, crc in islice(self._every_row(after), limit):
            if crc != database.checksum(now_s, event, decision, commands):
                raise database.damage_error(
                    self.place, f"entry {seq} was changed on disk: its checksum is wrong"
                )
            yield Entry(
                seq=seq, now_s=now_s, wall_s=wall_s, event=event, decision=decision, commands=commands
            )

    def _every_row(self, after: int) -> Iterator[archive.ArchivedEntry]:
        """Rows of entries: those that have left for archives, then the journal's own."""
        while True:
            for row in self.kept_entries(after):
                if row.seq != after + 1:
                    break
                yield row
                after = row.seq
            else:
                return
            for row in self._archived(after):
                yield row
                after = row.seq

    def _archived(self, after: int) -> Iterator[archive.ArchivedEntry]:
        """The entries behind a number that are in one file with the next of them."""
        _, _, folder = self.meta(archive.ARCHIVED).partition(" ")
        where = place_of(self.place)
        folders = [where.parent] if isinstance(where, Path) else []
        older = archive.find_archive([*folders, Path(folder)] if folder else [], after + 1)
        if older is None:
            hint = f": it was archived, and no file in {folder} has it" if folder else ""
            raise database.damage_error(self.place, f"entry {after + 1} is missing{hint}")
        return archive.read_archive(older, self.name, after=after)

    def kept_entries(self, after: int) -> Iterator[archive.ArchivedEntry]:
        """The journal's own rows of entries in order.

        Raises:
            JournalDamaged: they cannot be read. StorageLost: the database cannot be reached.
        """
        columns = "seq, now_s, wall_s, event, decision, commands, crc"
        sql = f"SELECT {columns} FROM entries WHERE seq > ? ORDER BY seq LIMIT ?"
        count = READ_ROWS
        while count == READ_ROWS:
            try:
                rows = self.reading.rows(sql, (after, READ_ROWS))
            except database.StorageLost:
                raise
            except database.StorageError as error:
                raise database.damage_error(
                    self.place, f"entry {after + 1} or one after it: {error}"
                ) from None
            yield from map(archive.ArchivedEntry._make, rows)
            count = len(rows)
            after = rows[-1][0] if rows else after

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Intact snapshots as (seq, data), newest first; a damaged one is left out, since the one before
        and the entries give the same state."""
        try:
            rows = self.reading.rows("SELECT seq, data, crc FROM snapshots ORDER BY seq DESC")
        except database.StorageLost:
            raise
        except database.StorageError as error:
            raise database.damage_error(self.place, f"snapshots: {error}") from None
        for seq, data, crc in rows:
            if zlib.crc32(data) == crc:
                yield seq, data

    def submission(self, user: str, key: str) -> tuple[JobId, ...] | None:
        """The jobs of a submission, by its user and its key; None: there is none."""
        sql = 'SELECT job_ids FROM submissions WHERE "user" = ? AND key = ?'
        found = self.reading.rows(sql, (user, key))
        return tuple(JobId(job_id) for job_id in found[0][0].split()) if found else None

    def secrets(self) -> dict[str, bytes]:
        """What `keep_secrets` kept."""
        return dict(self.reading.rows("SELECT stem, data FROM secrets"))

    def notices(self) -> list[str]:
        """What `keep_notice` kept."""
        sql = "SELECT value FROM meta WHERE key >= ? AND key < ? ORDER BY key"
        return [value for (value,) in self.reading.rows(sql, (NOTICE, f"{NOTICE}~"))]

    def past_job(self, job_id: JobId) -> bytes | None:
        """What `keep_job` kept of a job."""
        sql = 'SELECT data FROM past_jobs WHERE "array" = ? AND job = ?'
        found = self.reading.rows(sql, (array_of(job_id), job_id))
        return found[0][0] if found else None

    def past_tasks(self, array: str) -> list[bytes]:
        """What `keep_job` kept of an array's tasks, in order of arrival."""
        sql = 'SELECT data FROM past_jobs WHERE "array" = ? AND job <> "array" ORDER BY number'
        return [data for (data,) in self.reading.rows(sql, (array,))]

    def count_past_tasks(self, array: str) -> list[tuple[str, int, int, int]]:
        """Counts the forgotten tasks of an array by phase: (phase, how many, their least and their greatest
        index)."""
        index = 'CAST(substr(job, length("array") + 2) AS INTEGER)'
        sql = f"SELECT phase, count(*), min({index}), max({index}) FROM past_jobs"
        return self.reading.rows(f'{sql} WHERE "array" = ? AND job <> "array" GROUP BY phase', (array,))

    def reports(self) -> dict[HostId, int]:
        """The last report of each host that was taken in."""
        return dict(self.reading.rows("SELECT host, sequence FROM reports"))

    def audit(self, limit: int = 100) -> list[tuple[float, str, int, str, str, str]]:
        """Returns the newest lines of the audit: (wall clock, who, uid, verb, target, detail)."""
        sql = "SELECT wall_s, who, uid, verb, target, detail FROM audit ORDER BY id DESC LIMIT ?"
        return self.reading.rows(sql, (limit,))


class Journal(JournalReader):
    """The journal of one controller, open. One thread makes all calls; a second one, its own, commits."""

    def __init__(
        self,
        storage: database.Database | Path,
        *,
        writing: database.WritingConnection | None = None,
        commit_every_ms: float = 5.0,
        hand_over: Callable[[Sequence[Effect]], None] | None = None,
        on_failure: Callable[[database.StorageError], None] | None = None,
    ) -> None:
        """`database` may be the folder of a file. `writing`: a connection that leads already. `hand_over`
        receives what may happen after a commit, `on_failure` the error of one that failed; both are called
        by the writer thread.

        Raises:
            JournalError: another controller writes to it, it is of another version, damaged or not there.
        """
        self.database = SqliteDatabase(storage) if isinstance(storage, Path) else storage
        writing = writing or self.database.open_writing()
        place = self.database.place
        try:
            reading = self.database.open_reading()
        except database.JournalError:
            writing.close()
            raise
        try:
            super().__init__(reading, place)
            if self.meta(COPYING):
                raise database.JournalError(
                    f"{place} holds a part of a journal: finish with `cotenant controller copy`"
                )
            self.last_seq, *times = self.last()
            self._reports = super().reports()
        except (database.JournalError, database.StorageError) as error:
            reading.close()
            writing.close()
            if isinstance(error, database.JournalError | database.StorageLost):
                raise
            raise database.damage_error(place, str(error)) from None
        self._last_times = tuple(times)
        self._group = CommitGroup(epoch=0)
        self._epoch = 0
        self.commits = 0
        self._sealed = 0
        self._settled = 0
        self._is_probed = self._is_probing = False
        self._made = self._kept = 0
        """Entries and reports since the last `rewind`, and those of them that are durable."""
        self._writer = Writer(
            writing, commit_every_ms / 1000, self._hand_over_written, on_failure or _raise_later
        )
        self._hand_over = hand_over or _say_all
        self._writer.start()

    # --- Starting ----------------------------------------------------------------------------------

    def begin_run(self, configuration: bytes, package: str, wall_s: float, up: Uptime = UNKNOWN) -> float:
        """Notes a start of the controller; returns `now_s` of this moment: the clock goes on, never back."""
        runs = self.runs()
        now_s, then_s = self._last_times
        if runs and runs[-1].now_s >= now_s:
            now_s, then_s = runs[-1].now_s, runs[-1].wall_s
        if runs or self.last_seq:
            same_boot_s = self._now_of(up)
            now_s = max(now_s, now_s + wall_s - then_s if same_boot_s is None else same_boot_s)
        row = (self.last_seq + 1, package, configuration, now_s, wall_s, os.getpid())
        self._put("INSERT INTO runs VALUES(?,?,?,?,?,?)", row)
        self._put(PUT_META, ("clock", f"{up.boot_id} {now_s - up.monotonic_s!r}"))
        self.flush()
        return now_s

    def _now_of(self, up: Uptime) -> float | None:
        """`now_s` as if the last run went on; None where it ran in another boot."""
        boot_id, _, offset_s = self.meta("clock").partition(" ")
        return up.monotonic_s + float(offset_s) if boot_id and boot_id == up.boot_id else None

    # --- Writing -----------------------------------------------------------------------------------

    def append(self, now_s: float, wall_s: float, event: bytes, decision: bytes, commands: bytes) -> int:
        """Add an entry to the open group; returns its number."""
        self.last_seq += 1
        self._group.news += 1
        self._made += 1
        crc = database.checksum(now_s, event, decision, commands)
        row = (self.last_seq, now_s, wall_s, event, decision, commands, crc)
        self._put("INSERT INTO entries VALUES(?,?,?,?,?,?,?)", row)
        return self.last_seq

    def keep_submission(self, user: str, key: str, job_ids: Sequence[JobId]) -> None:
        row = (user, key, " ".join(job_ids), self.last_seq)
        self._put(
            'INSERT INTO submissions VALUES(?,?,?,?) ON CONFLICT("user", key) DO UPDATE SET '
            "job_ids = excluded.job_ids, seq = excluded.seq",
            row,
        )

    def keep_report(self, host_id: HostId, sequence: int) -> None:
        self._reports[host_id] = sequence
        self._group.news += 1
        self._made += 1
        self._put(
            "INSERT INTO reports VALUES(?,?) ON CONFLICT(host) DO UPDATE SET sequence = excluded.sequence",
            (host_id, sequence),
        )

    def keep_secrets(self, stem: str, data: bytes | None) -> None:
        """Keeps what a submission's jobs may know and nobody else, or drops it; not in files of SQLite."""
        self._put("DELETE FROM secrets WHERE stem = ?", (stem,))
        if data is not None:
            self._put("INSERT INTO secrets VALUES(?,?)", (stem, data))

    def keep_notice(self, key: str, data: str | None) -> None:
        """Keeps a message to a person until it is dropped, with what has become of it so far."""
        if data is None:
            self._put("DELETE FROM meta WHERE key = ?", (f"{NOTICE}{key}",))
        else:
            self._put(PUT_META, (f"{NOTICE}{key}", data))

    def keep_audit(
        self, wall_s: float, now_s: float, who: str, uid: int, verb: str, target: str, detail: str
    ) -> None:
        columns = "wall_s, now_s, who, uid, verb, target, detail"
        row = (wall_s, now_s, who, uid, verb, target, detail)
        self._put(f"INSERT INTO audit({columns}) VALUES(?,?,?,?,?,?,?)", row)

    def keep_quarantined(self, wall_s: float, event: bytes, story: str) -> None:
        self._put("INSERT INTO quarantine(wall_s, event, story) VALUES(?,?,?)", (wall_s, event, story))

    def keep_job(self, job: Job, data: bytes) -> None:
        """A job that the engine has forgotten."""
        row = (job.number, array_of(job.job_id), job.job_id, job.phase.value, data)
        self._put(
            'INSERT INTO past_jobs VALUES(?,?,?,?,?) ON CONFLICT(number) DO UPDATE SET "array" = '
            'excluded."array", job = excluded.job, phase = excluded.phase, data = excluded.data',
            row,
        )

    def keep_snapshot(self, data: bytes) -> None:
        """A snapshot of the state after the newest entry."""
        self._put(
            "INSERT INTO snapshots VALUES(?,?,?) ON CONFLICT(seq) DO UPDATE SET data = excluded.data, "
            "crc = excluded.crc",
            (self.last_seq, data, zlib.crc32(data)),
        )
        self._put(
            "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
            (SNAPSHOTS_KEPT,),
        )

    def _put(self, sql: str, row: tuple[object, ...]) -> None:
        self._group.rows.append((sql, row))

    def size_bytes(self) -> int | None:
        """What the journal takes, in bytes; None: it cannot be read."""
        return self.database.room().size_bytes

    @property
    def waiting(self) -> int:
        """Rows handed to the writer of which we have not heard back."""
        return self._sealed - self._settled

    @property
    def has_open_group(self) -> bool:
        """Something was added since the last `seal`."""
        return bool(self._group.rows)

    @property
    def is_ahead(self) -> bool:
        """Entries or reports have been added that are not known to be durable."""
        return self._made != self._kept

    @property
    def is_settled(self) -> bool:
        """Nothing is open and nothing is on its way to the disk."""
        return not self._group.rows and self.waiting == 0

    def seal(self, then: Sequence[Effect] = ()) -> None:
        """Close the open group; when it is on disk, `then` is handed over. Groups become durable in order."""
        group, self._group = self._group, CommitGroup(epoch=self._epoch)
        group.then = then
        self._sealed += max(1, len(group.rows))
        self._writer.items.put(group)

    def flush(self) -> None:
        """Wait until all is on disk (or known to have failed)."""
        done = threading.Event()
        self.seal()
        self._writer.items.put(done.set)
        done.wait()

    def rewind(self) -> None:
        """After a failed commit: forget what was not written, go on from what is on disk. Raises
        StorageError: that cannot be read."""
        self._group = CommitGroup(epoch=self._epoch)
        self.flush()
        self.last_seq = self.last()[0]
        self._reports = super().reports()
        self._epoch += 1
        self._group = CommitGroup(epoch=self._epoch)
        self._made = self._kept = 0

    def _hand_over_written(self, groups: Sequence[CommitGroup], committed: bool) -> None:
        """Hands over the effects of groups that the writer thread has committed; what changes our counters
        runs where the effects follow."""
        rows = sum(max(1, len(group.rows)) for group in groups)
        news = sum(group.news for group in groups) if committed else 0
        epoch = groups[0].epoch
        effects: list[Effect] = [lambda: self._settle(rows, committed, news if epoch == self._epoch else 0)]
        if committed:
            effects += [effect for group in groups for effect in group.then]
        self._hand_over(effects)

    def _settle(self, rows: int, committed: bool, news: int) -> None:
        self._settled += rows
        self.commits += committed
        self._kept += news

    def show_leading(self) -> None:
        """Called about twice a second: where others could lead, the writer shows that this one does."""
        if self.database.is_shared and self.waiting == 0:
            self.seal()

    def may_be_replaced(self, lease_s: float) -> bool:
        """Whether another controller may lead by now, because this one could not show a sign for a lease."""
        return self.database.is_shared and time.monotonic() - self._writer.proved_s > lease_s

    def has_room(self) -> bool:
        """Whether there is room for more work than what is already accepted."""
        return self.database.room().has_room

    def can_write(self) -> bool:
        """Tries to write: a page's worth of data, committed. Where that may take long, the writer thread
        tries until the next call, which is told what became of it."""
        if not self._is_probed and not self._is_probing:
            self._is_probing = True
            self._writer.items.put(self._probe)
            if not self.database.is_shared:
                self.flush()
        found, self._is_probed = self._is_probed, False
        return found

    def _probe(self) -> None:
        self._is_probed = self._writer.probe()
        self._is_probing = False

    def reports(self) -> dict[HostId, int]:
        """The last report of each host that was taken in, with those on their way to the disk."""
        return dict(self._reports)

    def close(self, *, hands_over: bool = False) -> None:
        """Writes what is left and ends the writer: another controller may write from now on. `hands_over`:
        one is waiting for that."""
        self.flush()
        if hands_over:
            self._writer.items.put(self._writer.leave)
        self.reading.close()  # Before the writer: the last to close a file of SQLite tidies it up.
        self._writer.items.put(None)
        self._writer.join()


def _say_all(effects: Sequence[Effect]) -> None:
    """Carries out effects for journals without a loop: what is to be said is said, decisions reach no
    executor."""
    let_follow(effects, lambda decided: None)


def _raise_later(error: database.StorageError) -> None:
    raise error
