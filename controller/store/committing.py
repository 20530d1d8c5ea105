"""The writer thread commits groups of rows, many of them with one flush of the disk.

Rule: the thread writes a group whole or not at all, and groups in the order in which they were sealed. After
a failed commit it writes nothing until the journal was rewound, because later decisions rest on a state that
is not on disk.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import AnyCommand
from cotenant.controller.domain import events as ev
from cotenant.controller.store.journal_file import connect
from cotenant.controller.store.reserve import Reserve

GROUP_ROWS_MAX: Final = 5_000

Statement = tuple[str, tuple[object, ...]]


class Decided(NamedTuple):
    """An event, and the commands that followed."""

    event: ev.AnyEvent
    commands: Sequence[AnyCommand]


Effect = Decided | Callable[[], None]
"""A consequence, once all before it is on disk: a decision to carry out, or a message to send."""


def let_follow(effects: Sequence[Effect], carry_out: Callable[[Decided], None]) -> None:
    """Carries out the effects of a commit in their order."""
    for effect in effects:
        if isinstance(effect, Decided):
            carry_out(effect)
        else:
            effect()


class CommitGroup(msgspec.Struct, kw_only=True):
    """Rows that are committed together or not at all, and what may happen then."""

    epoch: int
    rows: list[Statement] = []
    then: Sequence[Effect] = ()


class Writer(threading.Thread):
    """The thread that commits groups of rows. After a failure it drops groups until the journal was
    rewound."""

    def __init__(
        self,
        path: Path,
        commit_every_s: float,
        written: Callable[[Sequence[CommitGroup], bool], None],
        on_failure: Callable[[sqlite3.Error], None],
        disk_bytes_min: int,
    ) -> None:
        super().__init__(name="journal", daemon=True)
        self.groups: queue.SimpleQueue[CommitGroup | threading.Event | None] = queue.SimpleQueue()
        self._path = path
        self._commit_every_s = commit_every_s
        self._written = written
        self._on_failure = on_failure
        self._failed_epoch = -1
        self._mutex = threading.Lock()
        self._database = connect(path)
        self._reserve = Reserve(path, self._database, disk_bytes_min)

    def run(self) -> None:
        try:
            self._commit_for_ever()
        except BaseException:  # noqa: BLE001 - it ends with us
            # Without this thread no commit would ever be confirmed; a crash is survivable.
            traceback.print_exc()
            os._exit(70)

    def _commit_for_ever(self) -> None:
        self._provide(self._reserve.begin)
        committed_s, last_count = 0.0, 0
        while True:
            first = self.groups.get()
            # A lone row does not wait; where several came together, more gather until the next slot.
            wait_s = committed_s + self._commit_every_s - time.monotonic()
            if isinstance(first, CommitGroup) and last_count > 1 and wait_s > 0:
                time.sleep(min(wait_s, self._commit_every_s))
            groups, other = self._gather(first)
            if groups:
                self._write(groups)
                committed_s, last_count = time.monotonic(), len(groups)
            if isinstance(other, threading.Event):
                other.set()
            elif other is _END:
                self._database.close()
                return

    def _gather(self, first: CommitGroup | threading.Event | None) -> tuple[list[CommitGroup], object]:
        """All that is waiting now, up to a bound, or up to something that is no group."""
        groups: list[CommitGroup] = []
        item: CommitGroup | threading.Event | None = first
        rows = 0
        while isinstance(item, CommitGroup):
            groups.append(item)
            rows += len(item.rows)
            if rows >= GROUP_ROWS_MAX:
                return groups, None
            try:
                item = self.groups.get_nowait()
            except queue.Empty:
                return groups, None
        return groups, _END if item is None else item

    def _write(self, groups: Sequence[CommitGroup]) -> None:
        if any(group.epoch == self._failed_epoch for group in groups):
            self._written(groups, False)
            return
        try:
            with self._mutex:
                self._commit([statement for group in groups for statement in group.rows])
        except sqlite3.Error as error:
            self._failed_epoch = groups[0].epoch
            self._written(groups, False)
            self._on_failure(error)
            return
        self._written(groups, True)
        self._provide(self._reserve.refill)

    def _provide(self, room: Callable[[], None]) -> None:
        """Set room aside for later. If it fails nothing is lost; a commit would say so."""
        with self._mutex, suppress(sqlite3.Error, OSError):
            room()

    def _commit(self, rows: Sequence[Statement]) -> None:
        if not rows:
            return
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for sql, row in rows:
                self._database.execute(sql, row)
            self._database.execute("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def probe(self) -> bool:
        with self._mutex:
            try:
                self._commit([("INSERT OR REPLACE INTO meta VALUES('probe', ?)", ("x" * 65_536,))])
                self._commit([("DELETE FROM meta WHERE key = 'probe'", ())])
            except sqlite3.Error:
                return False
        return True


_END: Final = object()
