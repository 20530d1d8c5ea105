"""A controller's own past, from its journal: as a workload, as measured pairs, and under other policies."""

__all__ = ["journal", "replay", "shadow", "shadowing", "what_if"]
