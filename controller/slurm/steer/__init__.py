"""The order of somebody else's Slurm: read, decided by one of our policies, and set as priorities.

Rule: `core/` is pure; Slurm's programs are run in `slurm.py` alone, and the one file (which
priorities are ours) is `steerer.py`'s.
"""

# fmt: off
from cotenant.controller.slurm.steer.core.ordering import (ORDERS, Placed)
from cotenant.controller.slurm.steer.core.priorities import (HIGHEST, LOWEST, PriorityChange)
from cotenant.controller.slurm.steer.core.queue import QueueJob
from cotenant.controller.slurm.steer.slurm import Slurm, SlurmConfig, SlurmProblem
from cotenant.controller.slurm.steer.steerer import (
    RunHistory, Steerer, SteeringRound, Superseded, Touched, TouchedFile, TouchedProblem, look, read,
    release_all,
)

__all__ = [
    "HIGHEST", "LOWEST", "ORDERS", "Placed", "PriorityChange", "QueueJob", "RunHistory", "Slurm",
    "SlurmConfig", "SlurmProblem", "Steerer", "SteeringRound", "Superseded", "Touched", "TouchedFile",
    "TouchedProblem", "look", "read", "release_all",
]
# fmt: on
