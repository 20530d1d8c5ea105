"""What fits, trains or searches, in a process of its own; it may use the simulator, never the reverse."""

# fmt: off
from cotenant.controller.training import boosting, interference, pair_rows
from cotenant.controller.training.boosting import NoXGBoost
from cotenant.controller.training.interference import Both, Evaluation, evaluate, predictions
from cotenant.controller.training.journal_pairs import measured_pairs
from cotenant.controller.training.kinds import KINDS, compute
from cotenant.controller.training.pair_rows import PairRows, PairsProblem, part, read, together, widened

__all__ = [
    "KINDS", "Both", "Evaluation", "NoXGBoost", "PairRows", "PairsProblem", "boosting", "compute",
    "evaluate", "interference", "measured_pairs", "pair_rows", "part", "predictions", "read", "together",
    "widened",
]
# fmt: on
