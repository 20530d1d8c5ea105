"""This machine: devices, cores, cgroups, locks, ports, identity of processes."""

__all__ = [
    "cgroups", "checkpoint_root", "devices", "facts", "identity", "indicators", "jobside", "locks",
    "ports", "state_folder", "user_files",
]  # fmt: skip
