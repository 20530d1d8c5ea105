"""The supervisor's decisions, pure: when an attempt stops, saves or hangs, and how it ended."""

__all__ = [
    "activity",
    "edge",
    "exit_classifier",
    "exit_rules",
    "exits",
    "printed",
    "rank_messages",
    "stopping",
    "supervision",
]
