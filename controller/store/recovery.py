"""From the journal back to the state it led to, and the proof that it would lead there again.

Rule: recovery loads the newest snapshot and folds recorded events and decisions; it never asks a policy.
Replay asks again, from the first entry on, and compares: same program, same configuration, same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from cotenant.controller.domain import Allocations, AnyCommand, ComputeRequest, Decision
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import SNAPSHOT_VERSION, Engine, EngineConfig, MakePolicy
from cotenant.controller.engine import Snapshot as EngineSnapshot
from cotenant.controller.history import EtaBook, History, SavedEtas, SavedHistory
from cotenant.controller.store.database import damage_error
from cotenant.controller.store.journal import ControllerRun, Entry, JournalReader
from cotenant.controller.wire import BadMessage, pack, unpack, unpack_struct

DIFFERENCES_MAX = 100


class ShadowSet(msgspec.Struct, frozen=True, kw_only=True):
    """Which shadow policy is set, and since when."""

    policy: str
    parameters: dict[str, str | int | float | bool]
    begin_s: float
    by: str


class Image(msgspec.Struct, kw_only=True):
    """All that a snapshot holds."""

    engine: EngineSnapshot
    history: SavedHistory
    compute_requests: list[ComputeRequest]
    etas: SavedEtas
    shadow: ShadowSet | None
    allocations: Allocations


class RecoveredState:
    """The state that the journal's events lead to: the engine, and beside it the history, what is known of
    when jobs end, computations not yet answered, and hosts that are asked of Slurm."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.history = History()
        self.compute_requests: dict[int, ComputeRequest] = {}
        self.etas = EtaBook()
        self.shadow: ShadowSet | None = None
        self.allocations = Allocations()

    def handle(self, event: ev.AnyEvent, now_s: float) -> list[AnyCommand]:
        """Let something happen, now."""
        commands = self.engine.handle(event, now_s)
        self._watch(event, commands)
        return commands

    def fold(self, event: ev.AnyEvent, decision: Decision, now_s: float) -> list[AnyCommand]:
        """Apply a recorded event with its recorded decision."""
        commands = self.engine.fold(event, decision, now_s)
        self._watch(event, commands)
        return commands

    def _watch(self, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        self.history.observe(self.engine, event, commands)
        self.etas.observe(self.engine, event)
        if isinstance(event, ev.ShadowChanged):
            self.shadow = shadow_of(event, self.engine.now_s)
        if isinstance(event, ev.AllocationQueueChanged):
            self.allocations.queue_changed(event.name, event.queue, self.engine.now_s, event.why)
        if isinstance(event, ev.AllocationChanged):
            self.allocations.allocation_changed(event.allocation, self.engine.now_s)
        if isinstance(event, ev.Computed):
            self.compute_requests.pop(event.request_id, None)
        for command in commands:
            if isinstance(command, ComputeRequest):
                self.compute_requests[command.request_id] = command

    def save(self) -> bytes:
        """The state as bytes for `Journal.keep_snapshot`; encoded at once, since the parts go on changing."""
        image = Image(
            engine=self.engine.snapshot(),
            history=self.history.save(),
            compute_requests=list(self.compute_requests.values()),
            etas=self.etas.save(),
            shadow=self.shadow,
            allocations=self.allocations,
        )
        return msgspec.msgpack.encode(image)

    def load(self, data: bytes) -> None:
        """Into a new state.

        Raises:
            BadMessage: damaged data, or of another version.
        """
        image = unpack_struct(data, Image)
        if image.engine.version != SNAPSHOT_VERSION:
            raise BadMessage(f"snapshot of version {image.engine.version}")
        try:
            self.engine.restore(image.engine)
        except msgspec.DecodeError as error:  # What its policy had kept.
            raise BadMessage(f"not a valid snapshot: {error}") from None
        self.history = History(image.history)
        self.compute_requests = {request.request_id: request for request in image.compute_requests}
        self.etas = EtaBook(image.etas)
        self.shadow = image.shadow
        self.allocations = image.allocations


def shadow_of(event: ev.ShadowChanged, now_s: float) -> ShadowSet | None:
    if not event.name:
        return None
    return ShadowSet(policy=event.name, parameters=event.parameters, begin_s=now_s, by=event.by)


def digest(commands: Sequence[AnyCommand]) -> bytes:
    """The digest of commands by which a replay is compared; empty for no commands."""
    return hashlib.blake2b(pack(commands), digest_size=12).digest() if commands else b""


# --- Recovery --------------------------------------------------------------------------------------


class JournalFollower:
    """The state that a journal leads to, taken along as the journal grows."""

    def __init__(self, journal: JournalReader, make_policy: MakePolicy, config: EngineConfig) -> None:
        """Starts from the newest snapshot that can be read, else from the beginning. `config`: for a journal
        without a run.

        Raises:
            JournalDamaged: the snapshots cannot be read. StorageLost: nobody answers.
        """
        self._journal = journal
        self._make_policy = make_policy
        runs = journal.runs()
        self._state, self.seq, self._ran = _start(journal, make_policy, config, runs)
        """The state after entry `seq`, and the configuration that it is under."""
        self._runs = sum(run.first_seq <= self.seq + 1 for run in runs)

    def catch_up(self, limit: int | None = None) -> int:
        """Folds what has become durable since, at most `limit` entries; returns how many those were.

        Raises:
            JournalDamaged: an entry cannot be read; nothing is skipped. StorageLost: nobody answers.
        """
        count, upcoming = 0, []
        for entry in self._journal.entries(self.seq, limit):
            if not count:  # A run is there before its first entry.
                upcoming = self._journal.runs()[self._runs :]
            while upcoming and upcoming[0].first_seq <= entry.seq:
                configuration = upcoming.pop(0).configuration
                self._state, self._ran = _under(self._state, self._make_policy, self._ran, configuration)
                self._runs += 1
            event, decision = read_entry(self._journal, entry)
            self._state.fold(event, decision, entry.now_s)
            self.seq = entry.seq
            count += 1
        return count

    def state(self, config: EngineConfig) -> RecoveredState:
        """Hands over the state as it is now, under another configuration; the follower is used up."""
        return _under(self._state, self._make_policy, self._ran, pack(config))[0]


def recover(journal: JournalReader, make_policy: MakePolicy, config: EngineConfig) -> RecoveredState:
    """The state after the last durable entry, under `config`.

    Raises:
        JournalDamaged: an entry cannot be read; nothing is skipped. StorageLost: nobody answers.
    """
    follower = JournalFollower(journal, make_policy, config)
    follower.catch_up()
    return follower.state(config)


def _start(
    journal: JournalReader, make_policy: MakePolicy, config: EngineConfig, runs: Sequence[ControllerRun]
) -> tuple[RecoveredState, int, bytes]:
    """The newest snapshot that can be read, else the beginning; its entry and its configuration."""
    for seq, data in journal.snapshots():
        configuration = _configuration_at(runs, seq + 1)
        state = RecoveredState(Engine(make_policy, unpack(configuration, EngineConfig)))
        try:
            state.load(data)
        except BadMessage:
            continue  # Of another version: the entries are read instead.
        return state, seq, configuration
    configuration = runs[0].configuration if runs else pack(config)
    return RecoveredState(Engine(make_policy, unpack(configuration, EngineConfig))), 0, configuration


def _configuration_at(runs: Sequence[ControllerRun], seq: int) -> bytes:
    return [run for run in runs if run.first_seq <= seq][-1].configuration


def _under(
    state: RecoveredState, make_policy: MakePolicy, before: bytes, after: bytes
) -> tuple[RecoveredState, bytes]:
    """Moves the state under another configuration: a snapshot goes into a new engine."""
    if before == after:
        return state, after
    moved = RecoveredState(Engine(make_policy, unpack(after, EngineConfig)))
    moved.load(state.save())
    return moved, after


def read_entry(journal: JournalReader, entry: Entry) -> tuple[ev.AnyEvent, Decision]:
    """Decodes the event and the decision of an entry. Raises JournalDamaged: the text names the entry."""
    try:
        event: ev.AnyEvent = unpack(entry.event, ev.AnyEvent)
        decision: Decision = unpack(entry.decision, Decision)
    except BadMessage as error:
        raise damage_error(journal.place, f"entry {entry.seq} cannot be read ({error})") from None
    return event, decision


# --- Replay ----------------------------------------------------------------------------------------


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """An entry at which a policy decided differently when asked again."""

    seq: int
    event: str
    what: str


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    entries: int
    differences: tuple[Difference, ...]
    note: str = ""
    """Why equal decisions are not promised; empty if they are."""


def replay(journal: JournalReader, make_policy: MakePolicy, package: str) -> Replayed:
    """Ask the policies again about the whole journal.

    After a difference both sides go on from the recorded state, so that each is reported once.
    """
    runs = journal.runs()
    packages = sorted({run.package for run in runs} - {package})
    note = f"written by cotenant {', '.join(packages)}, replayed by {package}" if packages else ""
    if not runs:
        return Replayed(entries=0, differences=())
    ran = runs[0].configuration
    recorded = RecoveredState(Engine(make_policy, unpack(ran, EngineConfig)))
    asked = RecoveredState(Engine(make_policy, unpack(ran, EngineConfig)))
    upcoming, differences, count = list(runs[1:]), [], 0
    for entry in journal.entries():
        while upcoming and upcoming[0].first_seq <= entry.seq:
            after = upcoming.pop(0).configuration
            asked, _ = _under(asked, make_policy, ran, after)
            recorded, ran = _under(recorded, make_policy, ran, after)
        event, decision = read_entry(journal, entry)
        folded = recorded.fold(event, decision, entry.now_s)
        what = _compare(entry, asked, asked.handle(event, entry.now_s), folded)
        count += 1
        if what:
            differences.append(Difference(seq=entry.seq, event=type(event).__name__, what=what))
            asked = RecoveredState(Engine(make_policy, unpack(ran, EngineConfig)))
            asked.load(recorded.save())
            if len(differences) >= DIFFERENCES_MAX:
                note = f"{note}; " * bool(note) + f"stopped after {DIFFERENCES_MAX} differences"
                break
    return Replayed(entries=count, differences=tuple(differences), note=note)


def _compare(
    entry: Entry, asked: RecoveredState, commands: Sequence[AnyCommand], folded: Sequence[AnyCommand]
) -> str:
    decision = asked.engine.decision
    if pack(decision) != entry.decision:
        return f"decided {decision}, recorded {unpack(entry.decision, Decision)}"
    if digest(commands) != entry.commands:
        return f"commands {list(commands)} are not the recorded ones"
    if digest(folded) != entry.commands:
        return f"the recorded decision now gives commands {list(folded)}"
    return ""
