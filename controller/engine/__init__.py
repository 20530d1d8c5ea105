"""The engine: it takes an event and the time, changes the cluster's state, and returns commands.

Rule: pure. Nothing here reads a clock, a socket or a file; `engine.py` is the one way in.
"""

# fmt: off
from cotenant.controller.engine import accounts, usage
from cotenant.controller.engine.attempt_records import ALWAYS_S, AttemptRecord, HistoryNote, action_in_words
from cotenant.controller.engine.cheapest_change import cheapest_change
from cotenant.controller.engine.claims import VERDICTS, AttemptIs, JobIs, StateIs, agree
from cotenant.controller.engine.dispatch import Alarm, EngineConfig, memory_cap_mib
from cotenant.controller.engine.engine import SNAPSHOT_VERSION, Engine, Snapshot
from cotenant.controller.engine.estimating import LAG_REPORTS, LAG_S
from cotenant.controller.engine.etas import EtaBook, LengthClaim, SavedEtas, claim_of, policy_label, run_s
from cotenant.controller.engine.eta_questions import (
    ArrivalEffect, Delay, EtaAnswer, EtaQuestion, JobEta, SupposedJob, image_of, question_of, comparable_eta,
)
from cotenant.controller.engine.history import History, JobRecord, SavedHistory
from cotenant.controller.engine.lateness import WIDE_RATIO, WIDE_S
from cotenant.controller.engine.ledger import Ledger, SavedLedger
from cotenant.controller.engine.current_policy import MakePolicy

__all__ = [
    "ALWAYS_S", "LAG_REPORTS", "LAG_S", "SNAPSHOT_VERSION", "VERDICTS", "WIDE_RATIO", "WIDE_S", "Alarm",
    "ArrivalEffect", "AttemptIs", "AttemptRecord", "Delay", "Engine", "EngineConfig", "EtaAnswer",
    "EtaBook", "EtaQuestion", "History", "HistoryNote", "JobEta", "JobIs", "JobRecord", "Ledger",
    "LengthClaim", "MakePolicy", "SavedEtas", "SavedHistory", "SavedLedger", "Snapshot", "StateIs",
    "SupposedJob", "accounts", "action_in_words", "agree", "cheapest_change", "claim_of", "image_of",
    "memory_cap_mib", "policy_label", "question_of", "run_s", "comparable_eta", "usage",
]
# fmt: on
