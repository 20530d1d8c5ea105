"""What a process needs of its machine: settings, paths, keys, files, locks, an endpoint for Prometheus."""

__all__ = [
    "child",
    "endpoint",
    "files",
    "keys",
    "locks",
    "paths",
    "second_host",
    "sections",
    "secrets",
    "settings",
    "trees",
    "web_link",
]
