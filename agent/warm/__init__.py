"""Warm starts: ranks are forked from a process that has already imported their packages, where that equals
a cold start."""

__all__ = ["client", "pool", "refusals", "spawn"]
