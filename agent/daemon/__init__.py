"""One process per host: it talks to the controller and starts a supervisor per attempt."""

__all__ = [
    "assembly", "controller_link", "gpu_release", "runtime", "spare_supervisor", "spool", "supervisor_link",
    "supervisors", "warm_starts",
]  # fmt: skip
