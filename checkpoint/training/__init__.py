"""What a training state consists of, and how it is taken from a script's objects and put back.

Reading order: `state.py`, `snapshot.py` (its trees), `rng.py`, `data.py` (where it stands in its data).
"""
