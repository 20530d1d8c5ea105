"""The writer thread commits groups of rows, many of them with one flush of the disk.

Rule: the thread writes a group whole or not at all, and groups in the order in which they were sealed. After
a failed commit it writes nothing until the journal was rewound, because later decisions rest on a state that
is not on disk.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import AnyCommand
from cotenant.controller.domain import events as ev
from cotenant.controller.store.database import LeaderReplaced, Statement, StorageError, WritingConnection
from cotenant.controller.store.schema import PUT_META
from cotenant.controller.system.diagnostics import say

GROUP_ROWS_MAX: Final = 5_000


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
    news: int = 0
    """How many entries and reports are among the rows."""
    then: Sequence[Effect] = ()


class Writer(threading.Thread):
    """The thread that commits groups of rows. After a failure it drops groups until the journal was
    rewound."""

    def __init__(
        self,
        connection: WritingConnection,
        commit_every_s: float,
        written: Callable[[Sequence[CommitGroup], bool], None],
        on_failure: Callable[[StorageError], None],
    ) -> None:
        super().__init__(name="journal", daemon=True)
        self.items: queue.SimpleQueue[CommitGroup | Callable[[], None] | None] = queue.SimpleQueue()
        """Groups to commit, and calls to make once all before them is done; None: the end."""
        self.connection = connection
        self._commit_every_s = commit_every_s
        self._written = written
        self._on_failure = on_failure
        self._failed_epoch = -1
        self.proved_s = time.monotonic()
        """When the last commit began that was made: who could make it was in its place then."""

    def run(self) -> None:
        try:
            self._commit_for_ever()
        except BaseException:  # noqa: BLE001 - it ends with us
            # Without this thread no commit would ever be confirmed; a crash is survivable.
            say(traceback.format_exc())
            os._exit(70)

    def _commit_for_ever(self) -> None:
        self._provide(self.connection.begin)
        committed_s, last_count = 0.0, 0
        while True:
            first = self.items.get()
            # A lone row does not wait; where several came together, more gather until the next slot.
            wait_s = committed_s + self._commit_every_s - time.monotonic()
            if isinstance(first, CommitGroup) and last_count > 1 and wait_s > 0:
                time.sleep(min(wait_s, self._commit_every_s))
            groups, other = self._gather(first)
            if groups:
                self._write(groups)
                committed_s, last_count = time.monotonic(), len(groups)
            if other is _END:
                self.connection.close()
                return
            if other is not None:
                other()

    def _gather(
        self, first: CommitGroup | Callable[[], None] | None
    ) -> tuple[list[CommitGroup], Callable[[], None] | None]:
        """All that is waiting now, up to a bound, or up to something that is no group."""
        groups: list[CommitGroup] = []
        item = first
        rows = 0
        while isinstance(item, CommitGroup):
            groups.append(item)
            rows += len(item.rows)
            if rows >= GROUP_ROWS_MAX:
                return groups, None
            try:
                item = self.items.get_nowait()
            except queue.Empty:
                return groups, None
        return groups, _END if item is None else item

    def _write(self, groups: Sequence[CommitGroup]) -> None:
        if any(group.epoch == self._failed_epoch for group in groups):
            self._written(groups, False)
            return
        began_s = time.monotonic()
        try:
            self.connection.commit([statement for group in groups for statement in group.rows])
        except StorageError as error:
            self._failed_epoch = groups[0].epoch
            self._written(groups, False)
            self._on_failure(error)
            return
        self.proved_s = began_s
        self._written(groups, True)
        self._provide(self.connection.provide)

    def _provide(self, room: Callable[[], None]) -> None:
        """Set room aside for later. If it fails nothing is lost; a commit would say so."""
        with suppress(StorageError, OSError):
            room()

    def leave(self) -> None:
        """Says that this controller hands over. Called in this thread."""
        with suppress(StorageError):  # The successor then says that this one has ended.
            self.connection.leave()

    def probe(self) -> bool:
        """Whether a page's worth of data can be committed. Called in this thread."""
        try:
            self.connection.commit([(PUT_META, ("probe", "x" * 65_536))])
            self.connection.commit([("DELETE FROM meta WHERE key = 'probe'", ())])
        except LeaderReplaced as error:
            self._on_failure(error)
            return False
        except StorageError:
            return False
        return True


def _end() -> None:
    """Stands for the end among the calls."""


_END: Final = _end
