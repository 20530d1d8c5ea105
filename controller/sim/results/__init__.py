"""What came of simulated runs: rows, numbers with their intervals, documents and plots."""

__all__ = ["document", "paired", "plots", "summary"]
