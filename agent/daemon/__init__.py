"""The agent's daemon, one per host: it talks to the controller and starts a supervisor for each attempt."""

__all__ = [
    "agent_log",
    "assembly",
    "connections",
    "loop",
    "runtime",
    "spool",
    "supervisors",
    "tasks",
    "warm_starts",
]
