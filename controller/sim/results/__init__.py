"""Results of simulated runs: rows, numbers with intervals, documents, plots, and who held which device."""

__all__ = ["document", "paired", "placements", "plots", "summary"]
