"""What fits, trains or searches, in a process of its own; it may use the simulator, never the reverse."""

# fmt: off
from cotenant.controller.training import boosting, interference, pair_rows
from cotenant.controller.training.boosting import NoXGBoost
from cotenant.controller.training.interference_errors import Both, Evaluation, evaluate, predictions
from cotenant.controller.training.journal_pairs import measured_pairs
from cotenant.controller.training.kinds import KINDS, answer, compute
from cotenant.controller.training.parallel import Backend, Evaluate, NoBackend, evaluator
from cotenant.controller.training.pair_rows import (
    PairRows,
    PairsProblem,
    part,
    read,
    together,
    select_columns,
)

__all__ = [
    "KINDS", "Backend", "Both", "Evaluate", "Evaluation", "NoBackend", "NoXGBoost", "PairRows",
    "PairsProblem", "answer", "boosting", "compute", "evaluate", "evaluator", "interference",
    "measured_pairs", "pair_rows", "part", "predictions", "read", "together", "select_columns",
]
# fmt: on
