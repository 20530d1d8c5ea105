"""What is computed in child processes, so that the controller never waits for it.

`computing.py` has what a policy or a profile asks for, `etas.py` when jobs end, `shadow.py` what another
policy would decide.
"""

from cotenant.controller.workers.computing import ComputeWorker
from cotenant.controller.workers.etas import EtaWorker, ForesightWorker
from cotenant.controller.workers.shadow import ShadowWorker

__all__ = ["ComputeWorker", "EtaWorker", "ForesightWorker", "ShadowWorker"]
