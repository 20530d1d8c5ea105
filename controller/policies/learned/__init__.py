"""Orders that were learned: `rltune`, a small network, and `scorer`, three weights that a person can read.

Rule: nothing here learns. A model is a file from `cotenant policy train`, which the policy reads once, when
it is made, and evaluates with numpy.
"""

# fmt: off
from cotenant.controller.policies.learned.features import ACTOR, CRITIC, observation
from cotenant.controller.policies.learned.model import (
    SCHEMA, Layer, ModelCard, OrderModel, Validation, encoded, forward, read_model,
)
from cotenant.controller.policies.learned.rltune import RLTUNE, LearnedParameters, RlTune
from cotenant.controller.policies.learned.scorer import SCORED, SCORER, SJF_WEIGHTS, Scorer

__all__ = [
    "ACTOR", "CRITIC", "RLTUNE", "SCHEMA", "SCORED", "SCORER", "SJF_WEIGHTS", "Layer", "LearnedParameters",
    "ModelCard", "OrderModel", "RlTune", "Scorer", "Validation", "encoded", "forward",
    "observation", "read_model",
]
# fmt: on
