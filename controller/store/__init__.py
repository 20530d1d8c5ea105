"""The journal: events and decisions are durable before anything acts on them; recovery reads them back."""

# fmt: off
from cotenant.controller.store.database import (
    JOURNAL_VERSION, Database, Fenced, JournalDamaged, JournalError, JournalMissing, JournalUnreachable,
    StorageError, StorageLost, WritingConnection, checksum, damage_error,
)
from cotenant.controller.store.sqlite import JOURNAL_NAME, SqliteDatabase
from cotenant.controller.store.committing import (Decided, Effect, let_follow)
from cotenant.controller.store.reserve import (DISK_BYTES_MIN, RESERVE_BYTES)
from cotenant.controller.store.core import DECISION_BOUNDS_S, Core, Fatal, Poisoned, Stuck
from cotenant.controller.store.journal import (
    ControllerRun, Entry, Journal, JournalReader, open_database, place_of,
)
from cotenant.controller.store.clock import (Clock, Uptime, uptime)
from cotenant.controller.store.recovery import (
    Follower, RecoveredState, ShadowSet, digest, read_entry, recover, replay,
)
from cotenant.controller.store.scrub import BITE, Scrub, Scrubbed, scrub

__all__ = [
    "BITE", "DECISION_BOUNDS_S", "DISK_BYTES_MIN", "JOURNAL_NAME", "JOURNAL_VERSION", "RESERVE_BYTES",
    "Clock", "ControllerRun", "Core", "Database", "Decided", "Effect", "Entry", "Fatal", "Fenced", "Follower",
    "Journal", "JournalDamaged", "JournalError", "JournalMissing", "JournalReader", "JournalUnreachable",
    "Poisoned", "RecoveredState", "Scrub", "Scrubbed", "ShadowSet", "SqliteDatabase", "StorageError",
    "StorageLost", "Stuck", "Uptime", "WritingConnection", "checksum", "damage_error", "digest", "let_follow",
    "open_database", "place_of", "read_entry", "recover", "replay", "scrub", "uptime",
]
# fmt: on
