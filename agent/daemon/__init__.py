"""One process per host: it talks to the controller and starts a supervisor per attempt."""

__all__ = [
    "assembly", "connections", "runtime", "spool", "supervisors", "tasks", "warm_starts",
]  # fmt: skip
