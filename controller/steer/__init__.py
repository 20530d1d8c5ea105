"""The order of somebody else's Slurm: read, decided by one of our policies, and set as priorities.

Rule: `core/` is pure; Slurm's programs are run in `slurm.py` alone, and the one file is `touched.py`'s.
"""

# fmt: off
from cotenant.controller.steer.core.ordering import ORDERS, Order, Placed
from cotenant.controller.steer.core.priorities import HIGHEST, LOWEST, Change
from cotenant.controller.steer.core.queue import QueueJob
from cotenant.controller.steer.slurm import Slurm, SlurmConfig, SlurmProblem
from cotenant.controller.steer.steerer import History, Round, Steerer, Superseded, look, release_all
from cotenant.controller.steer.touched import Touched, TouchedFile, TouchedProblem, read

__all__ = [
    "HIGHEST", "LOWEST", "ORDERS", "Change", "History", "Order", "Placed", "QueueJob", "Round", "Slurm",
    "SlurmConfig", "SlurmProblem", "Steerer", "Superseded", "Touched", "TouchedFile", "TouchedProblem",
    "look", "read", "release_all",
]
# fmt: on
