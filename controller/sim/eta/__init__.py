"""When every job will end under the policy in force: roll-outs of the engine into possible futures.

    engine, pools -> roll-outs (`rollout.py`) -> an interval for each job, calibrated (`intervals.py`)

`EtaTrial` does the same at submissions of a simulation, and compares with what comes; `AskedEnds` asks there
for the end without later arrivals.
"""

from cotenant.controller.sim.eta.intervals import AskedEnds, EtaTrial, answer, answer_arrival, answer_supposed

__all__ = ["AskedEnds", "EtaTrial", "answer", "answer_arrival", "answer_supposed"]
