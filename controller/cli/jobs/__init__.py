"""Verbs about jobs: from `run` and `submit` to `logs` and `cancel`."""
