"""The controller without its socket: it decides about an event, journals both, and only then lets effects
follow. Rule: between an event and its effects lies one commit. The controller sends nothing that a crash
could make untrue. If a commit fails, or an event breaks the engine, it throws the state in memory away and
reads it back from the journal, exactly as after a crash. Rule: it calls nobody. `seal` returns what may
follow at once; the journal hands over what had to wait for its commit. The loop carries both out, in that
order.
"""

from __future__ import annotations

import secrets
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from cotenant.controller.domain import AnyCommand, Decision, Epoch, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig, MakePolicy
from cotenant.controller.store import committing, database, reading, recovery
from cotenant.controller.store.clock import UNKNOWN, Clock, Uptime
from cotenant.controller.store.journal import Journal
from cotenant.controller.store.scrub import Scrubbed
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.metrics import Histogram
from cotenant.controller.wire import pack

DECISION_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
QUARANTINED_MAX = 100
"""Events that broke the engine, in one run; after so many the controller ends."""


def _new_token() -> str:
    return secrets.token_hex(6)


class Stuck(Exception):
    """The journal cannot be written, so nothing may happen; the text says why."""


class Poisoned(Exception):
    """An event broke the engine. It is in quarantine; the state is as before."""


class Fatal(Exception):
    """There is no state to go on with: the controller must end; a start reads the journal or says why not."""


class PendingAnswer(NamedTuple):
    """What is said once it is known whether all up to entry `seq` is durable."""

    seq: int
    then: Callable[[], None]
    otherwise: Callable[[], None]
    unknown: Callable[[], None] | None


class Core(reading.ReadingCore):
    """State, journal and clock, and the order in which they are used. One thread only."""

    journal: Journal
    keep_beside: Callable[[ev.AnyEvent], None] | None = None
    """Called after each event; what it adds to the journal is durable with the event or not at all."""

    def __init__(
        self,
        journal: Journal,
        make_policy: MakePolicy,
        config: EngineConfig,
        *,
        package: str,
        wall_s: float,
        up: Uptime = UNKNOWN,
        snapshot_every: int = 20_000,
        clock: Callable[[float], Clock] = Clock,
        token: Callable[[], str] = _new_token,
        follow: Callable[[EngineConfig], recovery.RecoveredState] | None = None,
    ) -> None:
        """Recover, and begin a new run, in a new epoch. `follow`: gives the state after the last entry to one
        who has followed; None: it is read from the journal.

        Raises:
            JournalDamaged: see `recover`.
        """
        self._snapshot_seq = next((seq for seq, _ in journal.snapshots()), 0)
        state = follow(config) if follow else recovery.recover(journal, make_policy, config)
        self.recovered_entries = journal.last_seq - self._snapshot_seq
        super().__init__(journal, state, clock(journal.begin_run(pack(config), package, wall_s, up)))
        self.decisions = Histogram(DECISION_BOUNDS_S)
        """How long events took to handle, in seconds."""
        self.stuck = ""
        """Why the journal cannot be written; empty if it can."""
        self.scrubbed: Scrubbed | None = None
        """What the last check of the whole journal found; None: there was none since the start."""
        self.rebuilds = 0
        """How often the state was read back: code that keeps something beside it must start from the new
        one."""
        self._make_policy = make_policy
        self._config = config
        self._snapshot_every = snapshot_every
        self.began_wall_s = wall_s
        """When this run began, by the wall clock."""
        self._then: list[committing.Effect] = []
        self._decided: list[committing.Decided] = []
        self._promises: dict[int, PendingAnswer] = {}
        self._promise_count = 0
        self._is_unread = False
        """The database was lost, and what it holds was not read back yet."""
        self._token = token
        self._own_epochs: set[str] = set()
        """The epochs that this run began; it may send nothing in any other."""
        self.durable_seq = journal.last_seq
        """The last entry that is known to be on disk: agents may hear of it."""
        self.begin_epoch()
        # No agent is connected yet; each learns on connecting what is still wanted.
        self._then, self._decided = [], []
        self.seal()

    def begin_epoch(self, above: int = 0, *, restored: bool = False, hold_s: float = 0.0) -> None:
        """Decisions from now on belong to a history that nobody else can have. As with every event, it is on
        disk before anything is sent."""
        number = max(self.state.engine.ledger.epoch.number, above) + 1
        epoch = Epoch(number=number, token=self._token())
        self._own_epochs.add(epoch.token)
        self.happen(ev.EpochBegan(epoch=epoch, after=self.journal.last_seq, restored=restored, hold_s=hold_s))

    # --- Happening ---------------------------------------------------------------------------------

    def happen(self, event: ev.AnyEvent) -> list[AnyCommand]:
        """Decide, and add to the open group. What was decided follows it; more is added with `after_commit`.

        Raises:
            Stuck: the journal cannot be written.
            Poisoned: the engine failed on this event.
            Fatal: and the state before it cannot be read back.
        """
        if self.stuck:
            raise Stuck(self.stuck)
        now_s, began_s = self.clock.now_s(), time.perf_counter()
        try:
            commands = self.state.handle(event, now_s)
        except Exception as error:  # A policy may fail in any way; the state is rebuilt.
            self._quarantine(event, traceback.format_exc())
            raise Poisoned(f"{type(event).__name__}: {type(error).__name__}: {error}") from error
        self.decisions.observe(time.perf_counter() - began_s)
        decision = pack(self.state.engine.decision)
        self.journal.append(now_s, self.clock.wall(), pack(event), decision, recovery.digest(commands))
        self._keep_forgotten()
        self.counters["events"] += 1
        self.counters["commands"] += len(commands)
        decided = committing.Decided(event, commands)
        self._then.append(decided)
        self._decided.append(decided)
        if self.keep_beside is not None:
            self.keep_beside(event)
        return commands

    def _keep_forgotten(self) -> None:
        """Write what the engine has just forgotten, in the transaction of the event that pushed it out."""
        for record in self.state.history.forgotten:
            job = record.job
            self._on_their_way[job.job_id] = record
            self.journal.keep_job(job, msgspec.msgpack.encode(record))
            self._then.append(partial(self._is_kept, job.job_id))

    def _is_kept(self, job_id: JobId) -> None:
        self._on_their_way.pop(job_id, None)

    def take_decided(self) -> list[committing.Decided]:
        """What happened since the last call; not durable yet, so good only for marking what to do next."""
        decided, self._decided = self._decided, []
        return decided

    def run_after_commit(
        self,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
        unknown: Callable[[], None] | None = None,
    ) -> None:
        """Run `then` when all that happened so far is durable, `otherwise` if it could not be, `unknown` in
        place of both where nobody can say for so long that another controller may decide."""
        if otherwise is None:
            self._then.append(then)
            return
        self._promise_count += 1
        number = self._promise_count
        self._promises[number] = PendingAnswer(self.journal.last_seq, then, otherwise, unknown)

        def kept() -> None:
            if self._promises.pop(number, None) is not None:
                then()

        self._then.append(kept)

    @property
    def has_news(self) -> bool:
        """Whether anything happened, or has to follow, since the last `seal`."""
        return bool(self._then or self._decided) or self.journal.has_open_group

    def seal(self) -> list[committing.Effect]:
        """End of one message: commit its consequences together. Returns what may follow at once."""
        then, self._then = self._then, []
        if self.journal.is_settled:
            return then
        if self.journal.last_seq - self._snapshot_seq >= self._snapshot_every:
            self.snapshot()
        self.journal.seal([partial(self._is_durable, self.journal.last_seq), *then])
        return []

    def _is_durable(self, seq: int) -> None:
        self.durable_seq = max(self.durable_seq, seq)

    def audit(self, who: Identity, verb: str, target: str, detail: str = "") -> None:
        now_s = self.clock.now_s()
        self.journal.keep_audit(self.clock.wall(), now_s, who.name, who.uid, verb, target, detail[:1000])

    def snapshot(self) -> None:
        """Add one to the open group, if anything happened since the last. The last room on a disk is for
        entries."""
        if self.journal.last_seq > self._snapshot_seq and self.journal.has_room():
            self._snapshot_seq = self.journal.last_seq
            self.journal.keep_snapshot(self.state.save())

    def ring(self) -> bool:
        """Whether the engine wants to be woken now."""
        alarm_s = self.state.engine.next_alarm_s
        return alarm_s is not None and alarm_s <= self.clock.now_s()

    def preview(self, event: ev.AnyEvent) -> Decision:
        """What would be decided if this happened now, in a copy of the state: nothing is changed. Costs as
        much as a snapshot and a start from it."""
        copy = recovery.RecoveredState(Engine(self._make_policy, self._config))
        copy.load(self.state.save())
        copy.handle(event, self.clock.now_s())
        return copy.engine.decision

    # --- When it goes wrong ------------------------------------------------------------------------

    @property
    def is_ahead(self) -> bool:
        """The database was lost, and the state holds what it may never have kept: nobody may see that."""
        return self._is_unread and self.journal.is_ahead

    def commit_failed(self, error: database.StorageError) -> list[committing.Effect]:
        """The disk is full or broken: go back to what is on it, and decide nothing until it works. Returns
        the messages to send now in place of what was promised: none while nobody can say what was kept.

        Raises:
            Fatal: what is on it cannot be read, or another controller leads.
        """
        if isinstance(error, database.LeaderReplaced):
            raise Fatal(f"{error}: it decides, this one may not")
        self.stuck = f"the journal {self.journal.place} cannot be written: {error}"
        self.counters["failed_commits"] += 1
        if isinstance(error, database.StorageLost):
            self._is_unread = True
            return []
        try:
            self._rebuild()
        except database.StorageLost:
            self._is_unread = True
            return []
        promises, self._promises = self._promises, {}
        return [promise.otherwise for promise in promises.values()]

    def give_up_answers(self) -> None:
        """Says of what was promised that it is not known: another controller may lead by now."""
        for number, each in list(self._promises.items()):
            if each.unknown is not None:
                del self._promises[number]
                each.unknown()

    def try_again(self) -> bool:
        """Tries, while stuck, whether the disk works again."""
        if self.stuck and self.journal.has_room() and self.journal.can_write():
            if self._is_unread:
                try:
                    self._then += self._read_back()
                except database.StorageLost:
                    return False
            self.stuck = ""
            if self.state.engine.ledger.epoch.token not in self._own_epochs:  # Its beginning was what failed.
                self.begin_epoch()
        return not self.stuck

    def _read_back(self) -> list[committing.Effect]:
        """Goes back to what is durable; returns what is said now of all that was promised."""
        self._rebuild()
        self._is_unread = False
        promises, self._promises = self._promises, {}
        # Of a commit whose answer was lost it is known only now whether it was made.
        self.durable_seq = max(self.durable_seq, self.journal.last_seq)
        return [each.then if each.seq <= self.durable_seq else each.otherwise for each in promises.values()]

    def _quarantine(self, event: ev.AnyEvent, story: str) -> None:
        self.counters["quarantined"] += 1
        if self.counters["quarantined"] > QUARANTINED_MAX:
            raise Fatal(f"{QUARANTINED_MAX} events broke the engine; the last:\n{story}")
        try:
            self._rebuild()
        except database.StorageLost as lost:
            self.stuck = f"the journal {self.journal.place} cannot be read: {lost}"
            self._is_unread = True
            return
        self.journal.keep_quarantined(self.clock.wall(), pack(event), story)
        self.journal.seal()

    def _rebuild(self) -> None:
        try:
            self.journal.rewind()
            self._then, self._decided = [], []
            self._on_their_way.clear()
            self.state = recovery.recover(self.journal, self._make_policy, self._config)
        except database.StorageLost:
            raise
        except (database.JournalError, database.StorageError) as error:
            raise Fatal(f"the state cannot be read back: {error}") from error
        self._snapshot_seq = min(self._snapshot_seq, self.journal.last_seq)
        self.rebuilds += 1
