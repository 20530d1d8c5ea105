"""The order of somebody else's Slurm: read, decided by one of our policies, and set as priorities.

Rule: `core/` is pure; Slurm's programs are run in `slurm.py` alone, and the one file (which
priorities are ours) is `steerer.py`'s.
"""
