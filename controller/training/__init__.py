"""What fits, trains or searches, in a process of its own; it may use the simulator, never the reverse."""

# fmt: off
from cotenant.controller.training import boosting
from cotenant.controller.training.boosting import NoXGBoost
from cotenant.controller.training.journal_pairs import measured_pairs, pair_name
from cotenant.controller.training.kinds import KINDS, answer, compute
from cotenant.controller.training.parallel import Backend, Evaluate, NoBackend, evaluator

__all__ = [
    "KINDS", "Backend", "Evaluate", "NoBackend", "NoXGBoost", "answer", "boosting", "compute", "evaluator",
    "measured_pairs", "pair_name",
]
# fmt: on
