"""RLTune: an order learned by reinforcement, and waiting jobs placed together by an integer program.

Source: RLTune (Dongare et al., SoCC '25). Departs from it in fixed columns, in what happens beyond its
window, and in that a model that is no better than ordering by size is not used (`orders.py`). What came of
it: against sjf and ssf a learned order adds nothing that our windows can show, and `placement=milp` is surely
a gain in no row (experiments/results/rltune.md, placement.md).

`orders.py` has `rltune`, a small network, and `scorer`, ours, three weights that a person can read;
`model.py` is their file, `placement/` places. How they learn is in `experiments/rltune` of the source tree.

Rule: an order does not learn. It reads its model once, when it is made, and evaluates it with numpy.
"""

# fmt: off
from cotenant.controller.papers.rltune.model import (
    SCHEMA, Layer, ModelCard, OrderModel, Validation, encode_model, forward, read_model,
)
from cotenant.controller.papers.rltune.orders import (
    ACTOR, CRITIC, RLTUNE, SCORED, SCORER, SJF_WEIGHTS, LearnedParameters, RlTune, Scorer, observation,
)

__all__ = [
    "ACTOR", "CRITIC", "RLTUNE", "SCHEMA", "SCORED", "SCORER", "SJF_WEIGHTS", "Layer", "LearnedParameters",
    "ModelCard", "OrderModel", "RlTune", "Scorer", "Validation", "encode_model", "forward",
    "observation", "read_model",
]
# fmt: on
