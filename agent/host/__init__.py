"""This machine, as an agent needs it: who it is, what it has, and what belongs to whom.

Reading order: `facts.py`, `devices.py` and `locks.py` (what there is, and whose it is), `offer.py` (what is
given out), `cgroups.py` (what an attempt may use), `identity.py` (who a process is).
"""
