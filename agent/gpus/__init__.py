"""GPUs as an agent sees them: their states and errors, the processes that hold their memory, and MPS."""

__all__ = [
    "causes",
    "gpu_watch",
    "health",
    "held_memory",
    "mps_edge",
    "mps_watch",
    "probe_results",
    "watchers",
    "xid",
]
