"""When every job ends, under the policy in force: the engine of production rolled out into possible futures.

    engine, pools -> roll-outs (`rollout.py`) -> an interval for each job, calibrated (`intervals.py`)

`validation.py` does the same at submissions of a simulation, and compares with what comes.
"""

# fmt: off
from cotenant.controller.sim.eta.arriving import arrived, supposed
from cotenant.controller.sim.eta.intervals import answer
from cotenant.controller.sim.eta.validation import EtaTrial

__all__ = ["EtaTrial", "answer", "arrived", "supposed"]
# fmt: on
