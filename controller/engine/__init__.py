"""The engine: events in, commands out; the cluster's state and everything that keeps it in order.

Rule: pure. Nothing here reads a clock, a socket or a file; `engine.py` is the one way in.
"""

# fmt: off
from cotenant.controller.engine import accounts
from cotenant.controller.engine.attempt_records import AttemptRecord, HistoryNote, action_in_words
from cotenant.controller.engine.claims import VERDICTS, AttemptIs, JobIs, StateIs, agree
from cotenant.controller.engine.config import EngineConfig
from cotenant.controller.engine.dispatch import Alarm
from cotenant.controller.engine.engine import SNAPSHOT_VERSION, Engine, MakePolicy, Snapshot
from cotenant.controller.engine.estimating import LAG_REPORTS, LAG_S
from cotenant.controller.engine.history import History, SavedHistory
from cotenant.controller.engine.ledger import Ledger
from cotenant.controller.engine.starting import memory_cap_mib

__all__ = [
    "LAG_REPORTS", "LAG_S", "SNAPSHOT_VERSION", "VERDICTS", "Alarm", "AttemptIs", "AttemptRecord",
    "Engine", "EngineConfig", "History", "HistoryNote", "JobIs", "Ledger", "MakePolicy", "Snapshot",
    "SavedHistory", "StateIs", "accounts", "action_in_words", "agree", "memory_cap_mib",
]
# fmt: on
