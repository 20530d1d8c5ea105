"""The supervisor's actions: it starts workers with their environment, keeps their output, and ends them."""

__all__ = [
    "attempt_folder",
    "environment",
    "launchers",
    "logs",
    "measuring",
    "nccl",
    "outputs",
    "outside_signals",
    "ranks",
    "reaper",
    "terminal",
    "termination",
]
