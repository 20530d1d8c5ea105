"""The journal: events and decisions are durable before anything acts on them; recovery reads them back."""

# fmt: off
from cotenant.controller.store.database import (
    JOURNAL_VERSION, Database, JournalClosed, JournalDamaged, JournalError, JournalMissing,
    JournalUnreachable, LeaderReplaced, StorageError, StorageLost, WritingConnection, checksum,
    damage_error, file_error,
)
from cotenant.controller.store.sqlite import SqliteDatabase, SqliteWriting
from cotenant.controller.system.paths import JOURNAL_NAME
from cotenant.controller.store.committing import (Decided, Effect, let_follow)
from cotenant.controller.store.reserve import (DISK_BYTES_MIN, RESERVE_BYTES)
from cotenant.controller.store.reading import ReadingCore
from cotenant.controller.store.core import DECISION_BOUNDS_S, Core, Fatal, Poisoned, Stuck
from cotenant.controller.store.journal import (
    ControllerRun, Entry, Journal, JournalReader, open_database, place_of,
)
from cotenant.controller.store.archiving import archive_journal
from cotenant.controller.store.clock import (Clock, Uptime, uptime)
from cotenant.controller.store.recovery import (
    JournalFollower, RecoveredState, ShadowSet, digest, read_entry, recover, replay,
)
from cotenant.controller.store.scrub import BITE, Scrub, Scrubbed, scrub
from cotenant.controller.store.leadership import (
    FollowingStandby, Leadership, note_following, read_following, read_leadership,
)
from cotenant.controller.store.postgres import PostgresDatabase
from cotenant.controller.store.following import FollowingThread, StandbyNews, TakenOver
from cotenant.controller.store.secret_rows import SecretRows
from cotenant.controller.store.copying import copy_journal

__all__ = [
    "BITE", "DECISION_BOUNDS_S", "DISK_BYTES_MIN", "JOURNAL_NAME", "JOURNAL_VERSION", "RESERVE_BYTES",
    "Clock", "ControllerRun", "Core", "Database", "Decided", "Effect", "Entry", "Fatal",
    "FollowingStandby", "FollowingThread", "Journal", "JournalClosed", "JournalDamaged", "JournalError",
    "JournalFollower", "JournalMissing", "JournalReader", "JournalUnreachable", "LeaderReplaced",
    "Leadership", "Poisoned", "PostgresDatabase", "ReadingCore", "RecoveredState", "Scrub", "Scrubbed",
    "SecretRows", "ShadowSet", "SqliteDatabase", "SqliteWriting", "StandbyNews", "StorageError",
    "StorageLost", "Stuck", "TakenOver", "Uptime", "WritingConnection", "archive_journal", "checksum",
    "copy_journal", "damage_error", "digest", "file_error", "let_follow", "note_following",
    "open_database", "place_of", "read_entry", "read_following", "read_leadership", "recover", "replay",
    "scrub", "uptime",
]
# fmt: on
