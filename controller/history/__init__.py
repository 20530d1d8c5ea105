"""What is kept of jobs beside the engine's state: their history, what they have had, and when they end.

Rule: pure, and read by people alone; no decision follows from it.
"""

# fmt: off
from cotenant.controller.history import accounts, usage
from cotenant.controller.history.attempt_records import (
    ALWAYS_S, AttemptRecord, HistoryNote, action_in_words,
)
from cotenant.controller.history.etas import (
    EtaBook, LengthClaim, SavedEtas, claim_of, grounds_of, policy_label, run_s,
)
from cotenant.controller.history.eta_questions import (
    ArrivalEffect, Delay, EtaAnswer, EtaQuestion, JobEta, SupposedJob, comparable_eta, image_of, question_of,
)
from cotenant.controller.history.history import History, JobRecord, SavedHistory

__all__ = [
    "ALWAYS_S", "ArrivalEffect", "AttemptRecord", "Delay", "EtaAnswer", "EtaBook", "EtaQuestion", "History",
    "HistoryNote", "JobEta", "JobRecord", "LengthClaim", "SavedEtas", "SavedHistory", "SupposedJob",
    "accounts", "action_in_words", "claim_of", "comparable_eta", "grounds_of", "image_of",
    "policy_label", "question_of", "run_s", "usage",
]
