"""The simulated world: hosts and jobs that obey the engine as real ones do, under a virtual clock.

Reading order: `workload.py`, `knowledge.py` (what it is given), `world.py`, `run.py` (one job in it),
`devices.py` (who is where), `physics.py` and `overheads.py` (how fast, at what cost, when hosts fail).
"""
