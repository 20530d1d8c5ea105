"""Orders that were learned: `rltune`, a small network, and `scorer`, three weights that a person can read.

Rule: nothing here learns. A model is a file from `cotenant policy train`, which the policy reads once, when
it is made, and evaluates with numpy.
"""

# fmt: off
from cotenant.controller.papers.rltune.model import (
    SCHEMA, Layer, ModelCard, OrderModel, Validation, encoded, forward, read_model,
)
from cotenant.controller.papers.rltune.orders import (
    ACTOR, CRITIC, RLTUNE, SCORED, SCORER, SJF_WEIGHTS, LearnedParameters, RlTune, Scorer, observation,
)

__all__ = [
    "ACTOR", "CRITIC", "RLTUNE", "SCHEMA", "SCORED", "SCORER", "SJF_WEIGHTS", "Layer", "LearnedParameters",
    "ModelCard", "OrderModel", "RlTune", "Scorer", "Validation", "encoded", "forward",
    "observation", "read_model",
]
# fmt: on
