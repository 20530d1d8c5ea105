"""Castor: SJF with best-sharing-benefit-first. `policy.py` is Algorithm 1, `sharing.py` Algorithm 2."""
