"""What a process needs of its machine: settings, paths, keys, files, locks, an endpoint for Prometheus."""

__all__ = [
    "child",
    "diagnostics",
    "endpoint",
    "files",
    "keys",
    "local_users",
    "locks",
    "notice_sender",
    "paths",
    "second_host",
    "sections",
    "secrets",
    "settings",
    "trees",
    "web_link",
    "webhooks",
]
