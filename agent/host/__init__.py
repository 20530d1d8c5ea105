"""The machine under an agent: devices, cores, cgroups, locks, ports, folders, and process identities."""

__all__ = [
    "cgroup_mounts",
    "cgroups",
    "checkpoint_root",
    "devices",
    "facts",
    "folders",
    "indicators",
    "jobside",
    "locks",
    "ports",
    "process_identity",
    "rights",
    "trees",
    "user_files",
]
