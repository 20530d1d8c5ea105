"""The training state: what it consists of, and how it is taken from a script's objects and restored.

Reading order: `state.py`, `snapshot.py` (its trees), `rng.py`, `data.py` (where it stands in its data).
"""
