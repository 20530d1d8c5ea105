"""The journal: every event, the decision it led to, and all that was promised to anyone.

Rule: an event and its decision are one row of one transaction, and nothing that follows from them (an
acknowledgement, a command, an answer) leaves the controller before that transaction is on disk. So a crash
loses nothing that anybody has seen, and recovery never has to ask a policy again. A writer thread commits;
all that wait at that moment share the commit. Entries are never deleted: recovery, replay and history read
the same file. It must lie on a local disk, with one controller.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.domain import HostId, Job, JobId, array_of
from cotenant.controller.store.clock import UNKNOWN, Uptime
from cotenant.controller.store.committing import CommitGroup, Effect, Writer, let_follow
from cotenant.controller.store.journal_file import (
    JournalError,
    check_local,
    check_version,
    checksum,
    connect,
    create_if_missing,
    damage_error,
)
from cotenant.controller.store.reserve import DISK_BYTES_MIN
from cotenant.controller.system.locks import Lock, LockTaken

JOURNAL_NAME: Final = "journal.sqlite"
LOCK_NAME: Final = "controller.lock"
SNAPSHOTS_KEPT: Final = 2
ROOM_BYTES_MIN: Final = 32 * 1024 * 1024
"""With less free space than this no new submission is accepted: what runs must still be journalled."""


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


class Journal:
    """The journal of one controller, open. One thread makes all calls; a second one, its own, commits."""

    def __init__(
        self,
        folder: Path,
        *,
        commit_every_ms: float = 5.0,
        hand_over: Callable[[Sequence[Effect]], None] | None = None,
        on_failure: Callable[[sqlite3.Error], None] | None = None,
        disk_bytes_min: int = DISK_BYTES_MIN,
    ) -> None:
        """`hand_over` receives what may happen after a commit, `on_failure` the error of one that failed;
        both are called by the writer thread. `disk_bytes_min`: with less free space nothing is set aside.

        Raises:
            JournalError: locked by another controller, on a network disk, of another version, damaged.
        """
        self.path = folder / JOURNAL_NAME
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_local(folder)
        try:
            self._lock = Lock(folder / LOCK_NAME)
        except LockTaken as taken:
            raise JournalError(
                f"another controller (pid {taken.pid}) uses {folder}: stop it, or set controller.state_dir"
            ) from None
        try:
            self._open(commit_every_ms, hand_over, on_failure, disk_bytes_min)
        except sqlite3.Error as error:
            self._lock.release()
            raise damage_error(self.path, str(error)) from None
        except JournalError:
            self._lock.release()
            raise

    def _open(
        self,
        commit_every_ms: float,
        hand_over: Callable[[Sequence[Effect]], None] | None,
        on_failure: Callable[[sqlite3.Error], None] | None,
        disk_bytes_min: int,
    ) -> None:
        create_if_missing(self.path)
        self._reader = connect(self.path)
        check_version(self._reader, self.path)
        meta = dict(self._reader.execute("SELECT key, value FROM meta"))
        self.name: str = meta["name"]
        """Random, made with the journal: job and command numbers mean something only within one."""
        last = self._reader.execute(
            "SELECT seq, now_s, wall_s FROM entries ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        self.last_seq: int = last[0] if last else 0
        self._last_times = (last[1], last[2]) if last else (0.0, 0.0)
        self._group = CommitGroup(epoch=0)
        self._epoch = 0
        self.commits = 0
        self._sealed = 0
        self._settled = 0
        self._writer = Writer(
            self.path,
            commit_every_ms / 1000,
            self._hand_over_written,
            on_failure or _raise_later,
            disk_bytes_min,
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
        at = f"{up.boot_id} {now_s - up.monotonic_s!r}"
        self._put("INSERT OR REPLACE INTO meta VALUES('clock', ?)", (at,))
        self.flush()
        return now_s

    def _now_of(self, up: Uptime) -> float | None:
        """`now_s` as if the last run went on; None where it ran in another boot."""
        found = self._reader.execute("SELECT value FROM meta WHERE key='clock'").fetchone()
        boot_id, _, offset_s = found[0].partition(" ") if found else ("", "", "")
        return up.monotonic_s + float(offset_s) if boot_id and boot_id == up.boot_id else None

    # --- Writing -----------------------------------------------------------------------------------

    def append(self, now_s: float, wall_s: float, event: bytes, decision: bytes, commands: bytes) -> int:
        """Add an entry to the open group; returns its number."""
        self.last_seq += 1
        crc = checksum(now_s, event, decision, commands)
        row = (self.last_seq, now_s, wall_s, event, decision, commands, crc)
        self._put("INSERT INTO entries VALUES(?,?,?,?,?,?,?)", row)
        return self.last_seq

    def keep_submission(self, user: str, key: str, job_ids: Sequence[JobId]) -> None:
        row = (user, key, " ".join(job_ids), self.last_seq)
        self._put("INSERT OR REPLACE INTO submissions VALUES(?,?,?,?)", row)

    def keep_report(self, host_id: HostId, sequence: int) -> None:
        self._put("INSERT OR REPLACE INTO reports VALUES(?,?)", (host_id, sequence))

    def keep_audit(
        self, wall_s: float, now_s: float, who: str, uid: int, verb: str, target: str, detail: str
    ) -> None:
        self._put(
            "INSERT INTO audit VALUES(NULL,?,?,?,?,?,?,?)", (wall_s, now_s, who, uid, verb, target, detail)
        )

    def keep_quarantined(self, wall_s: float, event: bytes, story: str) -> None:
        self._put("INSERT INTO quarantine VALUES(NULL,?,?,?)", (wall_s, event, story))

    def keep_job(self, job: Job, data: bytes) -> None:
        """A job that the engine has forgotten."""
        row = (job.number, array_of(job.job_id), job.job_id, job.phase.value, data)
        self._put("INSERT OR REPLACE INTO past_jobs VALUES(?,?,?,?,?)", row)

    def keep_snapshot(self, data: bytes) -> None:
        """A snapshot of the state after the newest entry."""
        self._put("INSERT OR REPLACE INTO snapshots VALUES(?,?,?)", (self.last_seq, data, zlib.crc32(data)))
        self._put(
            "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
            (SNAPSHOTS_KEPT,),
        )

    def _put(self, sql: str, row: tuple[object, ...]) -> None:
        self._group.rows.append((sql, row))

    def size_bytes(self) -> int | None:
        """Size of the file and of SQLite's log beside it, in bytes; None: it cannot be read."""
        try:
            merged = self.path.stat().st_size
        except OSError:
            return None
        with suppress(OSError):  # There is none while nothing waits to be merged.
            return merged + self.path.with_name(f"{self.path.name}-wal").stat().st_size
        return merged

    @property
    def waiting(self) -> int:
        """Rows handed to the writer of which we have not heard back."""
        return self._sealed - self._settled

    @property
    def is_settled(self) -> bool:
        """Nothing is open and nothing is on its way to the disk."""
        return not self._group.rows and self.waiting == 0

    def seal(self, then: Sequence[Effect] = ()) -> None:
        """Close the open group; when it is on disk, `then` is handed over. Groups become durable in order."""
        group, self._group = self._group, CommitGroup(epoch=self._epoch)
        group.then = then
        self._sealed += max(1, len(group.rows))
        self._writer.groups.put(group)

    def flush(self) -> None:
        """Wait until all is on disk (or known to have failed)."""
        done = threading.Event()
        self.seal()
        self._writer.groups.put(done)
        done.wait()

    def rewind(self) -> None:
        """After a failed commit: forget what was not written, go on from what is on disk."""
        self._group = CommitGroup(epoch=self._epoch)
        self.flush()
        self._epoch += 1
        self._group = CommitGroup(epoch=self._epoch)
        self.last_seq = self._reader.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()[0]

    def _hand_over_written(self, groups: Sequence[CommitGroup], committed: bool) -> None:
        """Hands over the effects of groups that the writer thread has committed; what changes our counters
        runs where the effects follow."""
        rows = sum(max(1, len(group.rows)) for group in groups)
        effects: list[Effect] = [lambda: self._settle(rows, committed)]
        if committed:
            effects += [effect for group in groups for effect in group.then]
        self._hand_over(effects)

    def _settle(self, rows: int, committed: bool) -> None:
        self._settled += rows
        self.commits += committed

    def close(self) -> None:
        """Write what is left, end the writer, release the lock."""
        self.flush()
        self._writer.groups.put(None)
        self._writer.join()
        self._reader.close()
        self._lock.release()

    # --- Reading -----------------------------------------------------------------------------------

    def began_s(self, wall_s: float) -> float:
        """When its time was 0, by the wall clock of the first start; before the first start: now."""
        runs = self.runs()
        return runs[0].wall_s - runs[0].now_s if runs else wall_s

    def runs(self) -> list[ControllerRun]:
        rows = self._reader.execute(
            "SELECT first_seq, package, configuration, now_s, wall_s FROM runs ORDER BY rowid"
        )
        return [
            ControllerRun(first_seq=r[0], package=r[1], configuration=r[2], now_s=r[3], wall_s=r[4])
            for r in rows
        ]

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Durable entries in order.

        Raises:
            JournalDamaged: one is missing or was changed; the text names it.
        """
        expected = after + 1
        columns = "seq, now_s, wall_s, event, decision, commands, crc"
        sql = f"SELECT {columns} FROM entries WHERE seq > ? ORDER BY seq"
        try:
            for seq, now_s, wall_s, event, decision, commands, crc in self._reader.execute(sql, (after,)):
                if seq != expected:
                    raise damage_error(self.path, f"entry {expected} is missing")
                if crc != checksum(now_s, event, decision, commands):
                    raise damage_error(self.path, f"entry {seq} was changed on disk: its checksum is wrong")
                yield Entry(
                    seq=seq, now_s=now_s, wall_s=wall_s, event=event, decision=decision, commands=commands
                )
                expected += 1
        except sqlite3.Error as error:
            raise damage_error(self.path, f"entry {expected} or one after it: {error}") from None

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Intact snapshots as (seq, data), newest first; a damaged one is left out, since the one before
        and the entries give the same state."""
        try:
            rows = self._reader.execute("SELECT seq, data, crc FROM snapshots ORDER BY seq DESC").fetchall()
        except sqlite3.Error as error:
            raise damage_error(self.path, f"snapshots: {error}") from None
        for seq, data, crc in rows:
            if zlib.crc32(data) == crc:
                yield seq, data

    def submission(self, user: str, key: str) -> tuple[JobId, ...] | None:
        sql = "SELECT job_ids FROM submissions WHERE user = ? AND key = ?"
        row = self._reader.execute(sql, (user, key)).fetchone()
        return None if row is None else tuple(JobId(job_id) for job_id in row[0].split())

    def past_job(self, job_id: JobId) -> bytes | None:
        """What `keep_job` kept of a job."""
        sql = "SELECT data FROM past_jobs WHERE array = ? AND job = ?"
        row = self._reader.execute(sql, (array_of(job_id), job_id)).fetchone()
        return None if row is None else row[0]

    def past_tasks(self, array: str) -> Iterator[bytes]:
        """What `keep_job` kept of an array's tasks, in order of arrival."""
        sql = "SELECT data FROM past_jobs WHERE array = ? AND job <> array ORDER BY number"
        yield from (data for (data,) in self._reader.execute(sql, (array,)))

    def count_past_tasks(self, array: str) -> list[tuple[str, int, int, int]]:
        """Counts the forgotten tasks of an array by phase: (phase, how many, their least and their greatest
        index)."""
        index = "CAST(substr(job, length(array) + 2) AS INTEGER)"
        sql = f"SELECT phase, count(*), min({index}), max({index}) FROM past_jobs"
        return self._reader.execute(
            f"{sql} WHERE array = ? AND job <> array GROUP BY phase", (array,)
        ).fetchall()

    def reports(self) -> dict[HostId, int]:
        return dict(self._reader.execute("SELECT host, sequence FROM reports"))

    def audit(self, limit: int = 100) -> list[tuple[float, str, int, str, str, str]]:
        """Returns the newest lines of the audit: (wall clock, who, uid, verb, target, detail)."""
        sql = "SELECT wall_s, who, uid, verb, target, detail FROM audit ORDER BY id DESC LIMIT ?"
        return self._reader.execute(sql, (limit,)).fetchall()

    def has_room(self) -> bool:
        """Whether the disk has room for more work than what is already accepted."""
        space = os.statvfs(self.path.parent)
        return space.f_bavail * space.f_frsize >= ROOM_BYTES_MIN

    def can_write(self) -> bool:
        """Tries to write: a page's worth of data, committed."""
        return self._writer.probe()


def _say_all(effects: Sequence[Effect]) -> None:
    """Carries out effects for journals without a loop: what is to be said is said, decisions reach no
    executor."""
    let_follow(effects, lambda decided: None)


def _raise_later(error: sqlite3.Error) -> None:
    raise error
