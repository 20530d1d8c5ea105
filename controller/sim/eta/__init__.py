"""When every job ends, under the policy in force: the engine of production rolled out into possible futures.

    engine, pools -> roll-outs (`rollout.py`) -> an interval for each job, calibrated (`intervals.py`)

`EtaTrial` does the same at submissions of a simulation, and compares with what comes.
"""

from cotenant.controller.sim.eta.intervals import EtaTrial, answer, arrived, supposed

__all__ = ["EtaTrial", "answer", "arrived", "supposed"]
