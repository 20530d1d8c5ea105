"""What came of simulated runs: rows, numbers with their intervals, documents and plots, who held what."""

__all__ = ["document", "paired", "placements", "plots", "summary"]
