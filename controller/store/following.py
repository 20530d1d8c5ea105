"""Follows the journal of a leader, entry by entry, until there is none; then leads.

Rule: it looks when a commit is announced, and anyway four times a second. It takes over once nobody holds the
lock of the leader, or once the leader has shown no sign for a lease, by this machine's monotonic clock. It
does so only when it has taken in every entry; what came since is read once no earlier leader can write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from cotenant.controller.engine import EngineConfig, MakePolicy
from cotenant.controller.store import leadership
from cotenant.controller.store.database import JournalError, JournalUnreachable, StorageError
from cotenant.controller.store.journal import JournalReader
from cotenant.controller.store.postgres import PostgresDatabase, PostgresReading, PostgresWriting
from cotenant.controller.store.recovery import JournalFollower

log = logging.getLogger("cotenant.controller")

LOOK_S: Final = 0.25
AFTER_LOSS_S: Final = 6.0
"""How long a leader has to find a database again that was lost; it tries every two seconds."""
SLOW_S: Final = 1.0
"""A look that takes longer says more about the database than about the leader."""
NOTE_S: Final = 1.0
"""How often it says that it follows."""
ENTRIES_MAX: Final = 5_000
"""Entries taken in between two looks at the leader."""


class StandbyNews(NamedTuple):
    """How far a standby is."""

    leader: leadership.Leadership | None
    """None: nobody has led yet, or the database has not answered yet."""
    seq: int
    """The last entry that it has taken in."""
    behind_entries: int
    caught_up_s: float
    """When it had taken in everything, by the monotonic clock."""
    problem: str
    """Why it cannot follow at the moment; empty: it does."""


class TakenOver(NamedTuple):
    """What a new leader begins with."""

    database: PostgresDatabase
    writing: PostgresWriting
    follower: JournalFollower


class FollowingThread(threading.Thread):
    """Folds entries as they come. It ends when it leads, is stopped, or finds the journal damaged."""

    def __init__(
        self,
        database: PostgresDatabase,
        make_policy: MakePolicy,
        config: EngineConfig,
        lease_s: float,
        ended: Callable[[TakenOver | JournalError], None],
        *,
        leave_to_others_s: float = 0.0,
    ) -> None:
        """`ended` is called by this thread, unless it was stopped. `leave_to_others_s`: it does not take over
        before; a leader that has just handed over waits like this.

        Raises:
            JournalError: there is no journal, or nobody answers.
        """
        super().__init__(name="following", daemon=True)
        self._database = database
        self._make_policy, self._config = make_policy, config
        self._lease_s = lease_s
        self._ended = ended
        self._not_before_s = time.monotonic() + leave_to_others_s
        self._stopping = threading.Event()
        self._reading: PostgresReading = database.open_reading()
        self._follower: JournalFollower | None = None
        self._sign = (-1, -1)
        self._sign_s = time.monotonic()
        self._noted_s = 0.0
        self.news = StandbyNews(None, 0, 0, time.monotonic(), "")

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                taken = self._look()
            except (StorageError, JournalUnreachable) as error:
                # A leader that cannot be seen may well lead, and has lost its own connection if we have.
                self._sign_s = now_s = time.monotonic()
                self._not_before_s = max(self._not_before_s, now_s + AFTER_LOSS_S)
                self.news = self.news._replace(problem=str(error))
                self._stopping.wait(1.0)
                continue
            except JournalError as error:
                self._ended(error)
                break
            except Exception as error:  # A policy may fail in any way; a standby that stands still is none.
                log.exception("the journal cannot be followed")
                self._ended(JournalError(f"{self._database.place} cannot be followed: {error}"))
                break
            if taken is not None:
                self._ended(taken)
                break
        self._reading.close()

    def stop(self) -> None:
        """Ends the thread and waits for it."""
        self._stopping.set()
        self.join()

    def _look(self) -> TakenOver | None:
        if self._follower is None:
            journal = JournalReader(self._reading, self._database.place)
            self._follower = JournalFollower(journal, self._make_policy, self._config)
        began_s = time.monotonic()
        count = self._follower.catch_up(ENTRIES_MAX)
        leader, sign = leadership.read_leadership(self._reading), leadership.read_beat(self._reading)
        now_s = time.monotonic()
        if sign != self._sign:
            self._sign, self._sign_s = sign, now_s
        elif now_s - began_s > SLOW_S:  # Whoever could not look has seen nobody's silence.
            self._sign_s = min(now_s, self._sign_s + now_s - began_s)
        if count == ENTRIES_MAX:
            behind = JournalReader(self._reading, self._database.place).last()[0] - self._follower.seq
            self.news = self.news._replace(leader=leader, seq=self._follower.seq, behind_entries=behind)
            return None
        self.news = StandbyNews(leader, self._follower.seq, 0, now_s, "")
        if now_s - self._noted_s >= NOTE_S:
            self._noted_s = now_s
            leadership.note_following(self._reading, self._database.endpoint, self._follower.seq)
        if now_s >= self._not_before_s:
            silent_s = now_s - self._sign_s
            is_silent = silent_s >= self._lease_s
            if is_silent or not leadership.has_leader(self._reading):
                writing = self._database.try_to_lead(silent_s if is_silent else None)
                if writing is not None:
                    try:
                        leadership.forget_following(self._reading, self._database.endpoint)
                        self._follower.catch_up()
                    except BaseException:
                        writing.close()
                        raise
                    return TakenOver(self._database, writing, self._follower)
        self._reading.wait(LOOK_S)
        return None
