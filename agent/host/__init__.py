"""This machine: devices, cores, cgroups, locks, ports, folders, who a process is."""

__all__ = [
    "cgroups", "checkpoint_root", "devices", "facts", "folders", "indicators", "locks", "user_files",
]  # fmt: skip
