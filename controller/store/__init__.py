"""The journal: events and decisions are durable before anything acts on them; recovery reads them back."""

# fmt: off
from cotenant.controller.store.committing import (Decided, Effect, let_follow)
from cotenant.controller.store.reserve import (DISK_BYTES_MIN, RESERVE_BYTES)
from cotenant.controller.store.core import DECISION_BOUNDS_S, Core, Fatal, Poisoned, Stuck
from cotenant.controller.store.journal import (JOURNAL_NAME, ControllerRun, Entry, Journal)
from cotenant.controller.store.clock import (Clock, Uptime, uptime)
from cotenant.controller.store.journal_file import (
    BITE, JOURNAL_VERSION, JournalDamaged, JournalError, JournalMissing, Scrub, Scrubbed, check_version,
    checksum, damage_error, scrub,
)
from cotenant.controller.store.recovery import RecoveredState, ShadowSet, digest, read_entry, recover, replay

__all__ = [
    "BITE", "DECISION_BOUNDS_S", "DISK_BYTES_MIN", "JOURNAL_NAME", "JOURNAL_VERSION", "RESERVE_BYTES",
    "Clock", "ControllerRun", "Core", "Decided", "Effect", "Entry", "Fatal", "Journal", "JournalDamaged",
    "JournalError", "JournalMissing", "Poisoned", "RecoveredState", "Scrub", "Scrubbed", "ShadowSet", "Stuck",
    "Uptime", "check_version", "checksum", "damage_error", "digest", "let_follow", "read_entry", "recover",
    "replay", "scrub", "uptime",
]
# fmt: on
