"""Starting ranks from a process that has imported their packages before, where that is the same as a cold
start."""

__all__ = ["client", "pool", "refusals", "spawn"]
